package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/fence"
)

// board is what a rank shows to all its local peers: whether it sleeps.
//
// A sender publishes a cell and then looks at the board; a rank that wants to sleep writes the board and then looks at its
// cells. One of the two must see the other, which needs a full fence between the store and the load on both sides. Senders
// leave theirs out; the rank that goes to sleep runs one on every processor that runs a rank, for both sides (package fence).
// That interrupts the other ranks. So a rank that sleeps often uses its board to ask senders for fences of their own
// (boardFence), until it has polled for a while without sleeping.
type board struct {
	word atomic.Uint64
	_    [120]byte
}

const (
	boardArmed = 1 << 0 // ring the bell
	boardFence = 1 << 1 // fence between publishing and reading the board
	boardStep  = 1 << 2 // counts the armings, so that a late ringer clears only the one it saw

	boardBytes = 4096

	// calmPolls is how many polls without an Arm end the asking for fences.
	calmPolls = 1 << 13
)

// doorbell is the receiving side of a rank's sleep.
type doorbell struct {
	bell    int // eventfd, nonblocking
	memory  int // memfd of the board
	mem     []byte
	board   *board
	barrier bool // membarrier works here
	asleep  bool // Arm has returned false and Disarm has not been called
	armedAt uint64
}

func newDoorbell() (d *doorbell, err error) {
	d = &doorbell{bell: -1, memory: -1}
	made := d // d is nil at a failed return
	defer func() {
		if err != nil {
			made.close()
		}
	}()
	if d.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if d.memory, err = CreateSegment("fisterra-board", boardBytes, boardBytes, OrdinaryPages); err != nil {
		return nil, err
	}
	if d.mem, err = mapSegment(d.memory, boardBytes); err != nil {
		return nil, err
	}
	d.board = at[board](d.mem, 0)
	d.barrier = fence.Register()
	if !d.barrier && !fence.StoreIsFull {
		d.board.word.Store(boardFence)
	}
	return d, nil
}

// arm shows that this rank is about to sleep. Cells whose senders did not ring are visible to loads after it.
func (d *doorbell) arm(polls uint64) {
	d.armedAt = polls
	if d.board == nil { // closed
		return
	}
	w := d.board.word.Load()
	next := (w/boardStep+1)*boardStep | boardArmed
	if fence.StoreIsFull {
		d.board.word.Store(next)
		return
	}
	d.board.word.Store(next | boardFence)
	if w&boardFence == 0 {
		fence.Everywhere()
	}
}

// disarm shows that this rank polls again, and empties the bell if it may have rung.
func (d *doorbell) disarm() {
	if d.board == nil { // closed
		return
	}
	w := d.board.word.Load()
	for !d.board.word.CompareAndSwap(w, w&^boardArmed) { // against a ringer
		w = d.board.word.Load()
	}
	if d.asleep || w&boardArmed == 0 {
		d.asleep = false
		d.quiet()
	}
}

// calm stops asking senders for fences when this rank has polled calmPolls times without sleeping.
func (d *doorbell) calm(polls uint64) {
	if polls-d.armedAt < calmPolls || !d.barrier || d.board == nil {
		return
	}
	d.armedAt = polls
	if w := d.board.word.Load(); w&(boardFence|boardArmed) == boardFence {
		d.board.word.CompareAndSwap(w, w&^boardFence)
	}
}

// quiet empties the bell.
func (d *doorbell) quiet() {
	var b [8]byte
	unix.Read(d.bell, b[:]) // nothing to read is the usual case
}

func (d *doorbell) close() {
	if d.mem != nil {
		Unmap(d.mem)
		d.mem, d.board = nil, nil
	}
	for _, fd := range []*int{&d.bell, &d.memory} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// ring makes an eventfd readable.
func ring(bell int) {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	for {
		if _, err := unix.Write(bell, one[:]); !errors.Is(err, unix.EINTR) {
			return // EAGAIN: it is readable as it can be
		}
	}
}

// notify wakes the peer if it sleeps. It comes after every store that a
// sleeping peer must see.
func (ep *endpoint) notify() {
	if ep.board.word.Load()&(boardArmed|boardFence) != 0 || ep.fence {
		ep.wake()
	}
}

// wake rings the peer's bell first and clears its board afterwards: if this rank is stopped in between, the other ranks still
// ring. It is never inlined, as a profile would have it, so that notify is.
//
//go:noinline
func (ep *endpoint) wake() {
	if !fence.StoreIsFull {
		ep.fenced.Add(1) // a locked instruction: a full fence
	}
	w := ep.board.word.Load()
	if w&boardArmed != 0 {
		ring(ep.bell)
		ep.board.word.CompareAndSwap(w, w&^boardArmed)
	}
}
