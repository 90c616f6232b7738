package osyield

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Home is the processor that a rank should run on, so that no processor has more ranks than need be.
//
// The kernel may start two ranks on one processor and leave them there while another is free: its load balancer takes a
// process that ran a moment ago to have its memory in that processor's caches, and ranks that wait for each other by
// sched_yield have always just run. It also puts a rank that wakes up where another runs, when the rank's own processor is
// busy for a moment. Every wait then costs two switches, and all who wait for one of the two ranks wait for the switches,
// too: sixteen ranks on sixteen processors took 26 µs for a barrier of 1.3. A rank notices, since its yields take as long as
// the other runs, and goes home. It is not bound there: the processors where it may run stay the same. Where ranks outnumber
// processors every yield takes so long. There a rank looks now and then whether it is home: four ranks on two processors take
// half as long again while three of them share one.
type Home struct {
	processor int
	crowded   bool
	row       int // waits, one after the other, whose first yield let another run; in a crowd: yields
	need      int // the row at which it goes home
}

const (
	homeRow    = 4       // something else that runs for a moment is not met in so many waits in a row
	homeRowMax = 1 << 12 // a time slice and more, so that going in vain costs little in the end
	homeYields = 64      // some 0.4 ms of switches; a look costs as much as a quarter of one

	// switched is how long a yield takes at least if it let another process run: two switches, and what that process did. A
	// yield that finds nobody takes 0.3 µs.
	switched = 2 * time.Microsecond
)

// NewHome is the home of a rank that should run on a processor; -1 if on any.
func NewHome(processor int) Home { return Home{processor: processor, need: homeRow} }

// NewCrowdedHome is NewHome where ranks outnumber processors.
func NewCrowdedHome(processor int) Home {
	return Home{processor: processor, crowded: true, need: homeYields}
}

// Wait counts the yields of one wait, and the time that they take.
type Wait struct {
	Yields int           // so far
	Lasts  time.Duration // from the first look at the clock to the last
	begun  time.Time
}

// crowdLooks: in a crowd a rank looks at the clock only at one yield of so many. What the clock needs has left the caches by
// then, and a look at each yield took 5 % of the yield's time.
const crowdLooks = 8

// Yield gives the processor away, and returns how long that took; 0 in a crowd, where it is always a switch. It
// may move the calling thread, which takes about 20 µs.
//
// A wait that needs no yield says nothing, and is not noted: among many ranks, those on other processors answer at once, also
// between two waits for the one that shares this processor.
func (h *Home) Yield(w *Wait) (took time.Duration) {
	timed := !h.crowded || w.Yields%crowdLooks == crowdLooks-1
	if timed && w.begun.IsZero() {
		w.begun = time.Now()
	}
	Yield()
	if timed {
		now := time.Since(w.begun) // half of what time.Now costs
		took, w.Lasts = now-w.Lasts, now
	}
	h.note(w.Yields, took)
	w.Yields++
	if h.crowded {
		return 0
	}
	return took
}

// note notes a yield, the nth of its wait.
func (h *Home) note(nth int, took time.Duration) {
	switch {
	case h.crowded:
	case nth > 0:
		return
	case took < switched: // the rank is alone here: it has not moved in vain
		h.row, h.need = 0, homeRow
		return
	}
	if h.row++; h.row < h.need || h.processor < 0 {
		return
	}
	h.row = 0
	h.move()
}

// move takes the calling thread home. It goes even where another program keeps that processor busy: two ranks get more done
// if one of them takes turns with the program than if they take turns with each other.
func (h *Home) move() {
	// The goroutine must not leave a bound thread behind. Go starts no thread from a locked one, so no new thread inherits
	// the binding either.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from, err := processor()
	if err != nil {
		return
	}
	if from == h.processor {
		if h.crowded { // it has stayed where it went
			h.need = homeYields
		}
		return
	}
	h.need = min(2*h.need, homeRowMax)
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil || !allowed.IsSet(h.processor) {
		return
	}
	visit(h.processor, &allowed)
}

// visit moves the calling thread to a processor and lets it run where it is allowed to again.
func visit(processor int, allowed *unix.CPUSet) {
	var one unix.CPUSet
	one.Set(processor)
	if unix.SchedSetaffinity(0, &one) == nil {
		_ = unix.SchedSetaffinity(0, allowed) // the kernel takes back what it gave
	}
}

// processor is the one that the calling thread runs on.
func processor() (int, error) {
	var n uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0); errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
