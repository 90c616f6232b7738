package osyield

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Home is the processor that a rank should run on, so that no processor has more ranks than need be.
//
// The kernel may start two ranks on one processor and leave them there while another is free: its load
// balancer takes a process that ran a moment ago to be at home in its caches, and ranks that wait for each
// other by sched_yield have always just run. Every wait then costs two switches. A rank notices, since what
// it waits for comes with its first yield, and goes home. It is not bound there: where it may run stays as it was.
// Where ranks outnumber processors every wait is like that. There a rank looks every now and then: four of them
// on two processors take half as long again while three share one.
type Home struct {
	processor int
	row       int // waits, one after the other, that the first yield ended
	need      int // such waits before it goes
}

const (
	homeRow    = 8       // 60 µs of waits in memory
	homeRowMax = 1 << 12 // a time slice and more, so that going in vain costs little in the end
	homeYields = 64      // some 0.4 ms of switches; a look costs as much as a quarter of one
)

// NewHome is the home of a rank that should run on a processor; -1 if on any.
func NewHome(processor int) Home { return Home{processor: processor, need: homeRow} }

// Alone notes a wait that ended while the rank kept its processor, though not at its
// first look: what is there before it waits may have come while it last gave way.
func (h *Home) Alone() { h.row = 0 }

// Shared notes a wait that ended as soon as the processor was given away, and may move the
// calling thread, which takes about 20 µs.
func (h *Home) Shared() {
	if h.row++; h.row < h.need || h.processor < 0 {
		return
	}
	h.row = 0
	h.move()
}

// Yielded notes that a rank which shares its processor with others has given it away, and may move the
// calling thread.
func (h *Home) Yielded() {
	if h.row++; h.row < max(h.need, homeYields) || h.processor < 0 {
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
	if err != nil || from == h.processor {
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
