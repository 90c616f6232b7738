package osyield

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Home is the processor that a rank should run on, so that no processor has more ranks than need be.
//
// The kernel may start two ranks on one processor and leave them there while another is free: its load
// balancer takes a process that ran a moment ago to be at home in its caches, and ranks that wait for each
// other by sched_yield have always just run. It also puts a rank that wakes up where another is, when its own processor is busy for
// a moment. Every wait then costs two switches, and all who wait for one of the two wait for that: sixteen ranks on sixteen
// processors took 26 µs for a barrier of 1.3. A rank notices, since its yields take as long as the
// other runs, and goes home. It is not bound there: where it may run stays as it was.
// Where ranks outnumber processors every yield is like that. There a rank looks every now and then: four of them
// on two processors take half as long again while three share one.
type Home struct {
	processor int
	crowded   bool
	row       int // waits, one after the other, whose first yield let another run; in a crowd: yields
	need      int // so many before it goes
}

const (
	homeRow    = 4       // what else runs for a moment does not so often in a row
	homeRowMax = 1 << 12 // a time slice and more, so that going in vain costs little in the end
	homeYields = 64      // some 0.4 ms of switches; a look costs as much as a quarter of one

	// switched is how long a yield takes at least that let another run: two switches, and what it did. One that finds nobody takes
	// 0.3 µs.
	switched = 2 * time.Microsecond
)

// NewHome is the home of a rank that should run on a processor; -1 if on any.
func NewHome(processor int) Home { return Home{processor: processor, need: homeRow} }

// NewCrowdedHome is likewise that of a rank where ranks outnumber processors.
func NewCrowdedHome(processor int) Home {
	return Home{processor: processor, crowded: true, need: homeYields}
}

// Wait is a wait as far as the processor is given away.
type Wait struct {
	Yields int           // so far
	Lasts  time.Duration // as of the last look at the clock, since the first of them
	begun  time.Time
}

// crowdLooks is how many yields a rank in a crowd does between two looks at the clock, which by then has left its caches: they
// took 5 % of what a yield takes there.
const crowdLooks = 8

// Yield gives the processor away, and returns how long that took; 0 in a crowd, where it is always a switch. It
// may move the calling thread, which takes about 20 µs.
//
// A wait that needs no yield says nothing, and is not noted: among many ranks those on other processors answer at once, also
// between two waits for the one that shares this.
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
	case took < switched: // here it is alone, so that it did not come in vain
		h.row, h.need = 0, homeRow
		return
	}
	if h.row++; h.row < h.need || h.processor < 0 {
		return
	}
	h.row = 0
	h.move()
}

// move takes the calling thread home. Another program that keeps the processor there busy is no reason
// to stay: by turns with it both ranks still make more of their time than by turns with each other.
func (h *Home) move() {
	// The goroutine must not leave a thread behind that is bound. Go starts no thread from a
	// locked one, so none inherits that either.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from, err := processor()
	if err != nil {
		return
	}
	if from == h.processor {
		if h.crowded { // it stays where it goes
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
		_ = unix.SchedSetaffinity(0, allowed) // what the kernel gave it also takes
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
