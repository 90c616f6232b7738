package mpi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// tree is the Membership of a world of processes: connections between ranks
// that stay open for its whole life and carry heartbeats, losses and goodbyes, apart
// from the ranks' messages.
//
// Position p hangs below position (p-1)/32. If that rank is gone, p hangs
// below the lowest living position instead. A loss or a goodbye is a fact: whoever
// learns one passes it on over its other connections, once, so everybody has
// it after at most the tree's depth. A loss is never taken back.
type tree struct {
	self    wire.Self // its Layout is set by adopt
	host    string
	timeout time.Duration // silence after which a neighbour is lost; 0: never
	log     *slog.Logger
	door    *wire.Door    // nil for a single rank
	agreed  chan struct{} // closed by adopt: the roster is known
	ended   chan struct{} // closed by Close
	work    sync.WaitGroup

	roster     *roster // set by adopt, before agreed is closed
	byPosition []int

	mu       sync.Mutex
	lost     map[int]string // why, by rank
	left     map[int]bool   // said goodbye
	gone     map[int]string // said goodbye, and ended before all had: how that is known
	away     map[int]bool   // said goodbye, and has closed its connection to this rank or takes none from it
	edges    map[int]*edge
	parent   int    // rank; -1: none
	moving   bool   // looking for a new parent
	target   int    // rank that is tried as one, while moving
	forsake  func() // ends the attempt
	closing  bool
	cutOff   bool              // this rank was given up by the others
	orphans  map[int]time.Time // living ranks that should come to this one, and since when
	parted   chan struct{}     // closed when all ranks have left or are lost
	news     []int             // losses not yet delivered
	newsBell chan struct{}

	delivery sync.Mutex       // held while news is delivered
	events   MembershipEvents // where to; nil before Start
}

const treeFanOut = 32

// Frames of tree connections.
const (
	frameRoster byte = 1
	framePing   byte = 2
	frameFacts  byte = 3
)

// openTree listens for neighbours. Their hellos wait until the roster is known.
func openTree(ctx context.Context, m *meeting) (*tree, error) {
	t := &tree{
		self: m.self([32]byte{}), host: m.l.host, timeout: m.cfg.peerTimeout(), log: m.cfg.log(),
		agreed: make(chan struct{}), ended: make(chan struct{}),
		lost: map[int]string{}, left: map[int]bool{}, gone: map[int]string{}, away: map[int]bool{},
		edges: map[int]*edge{}, parent: -1, orphans: map[int]time.Time{},
		parted: make(chan struct{}), newsBell: make(chan struct{}, 1),
	}
	if m.l.size == 1 {
		return t, nil
	}
	listener, err := listenOn(ctx, m.address.String(), 0)
	if err != nil {
		return nil, fmt.Errorf("mpi: listening on the published address (%s): %w", m.why, err)
	}
	t.door = wire.OpenDoor(listener, wire.DoorConfig{Self: t.whenAgreed, Admit: t.admit, Enter: t.enter, Slots: strangers + m.l.size, Log: t.log})
	return t, nil
}

func (t *tree) address() string {
	if t.door == nil {
		return ""
	}
	return t.door.Addr().String()
}

// whenAgreed blocks a neighbour's hello until the layout is known, or the connection is gone.
func (t *tree) whenAgreed(gone <-chan struct{}) (wire.Self, bool) {
	select {
	case <-t.agreed:
	case <-gone:
		return wire.Self{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.self, true
}

// adopt takes the roster: from here on the tree is alive.
func (t *tree) adopt(r *roster) {
	t.mu.Lock()
	t.roster = r
	t.self.Layout = r.Hash
	t.byPosition = make([]int, len(r.Seats))
	for _, s := range r.Seats {
		t.byPosition[s.Position] = s.Rank
	}
	t.mu.Unlock()
	close(t.agreed)
	if len(r.Seats) > 1 && t.timeout > 0 {
		t.work.Go(t.watch)
	}
}

// parentOf is the rank below which a rank hangs when everybody is alive.
func (t *tree) parentOf(rank int) int {
	position := t.roster.Seats[rank].Position
	if position == 0 {
		return -1
	}
	return t.byPosition[(position-1)/treeFanOut]
}

// join attaches this rank to its first parent and waits for the roster.
func (t *tree) join(ctx context.Context, w welcome) error {
	t.mu.Lock()
	t.self.Layout = w.Hash
	t.mu.Unlock()
	var err error
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		if err = t.joinOnce(ctx, w); err == nil || ctx.Err() != nil || errors.Is(err, wire.ErrRefused) ||
			errors.Is(err, syscall.ECONNREFUSED) { // the parent listened before it came to position 0, so it has ended
			break
		}
		waited(ctx, pause)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	if err != nil {
		return fmt.Errorf("mpi: rank %d cannot reach rank %d at %s while the ranks meet: %w", t.self.Rank, w.Parent, w.Tree, err)
	}
	return nil
}

func (t *tree) joinOnce(ctx context.Context, w welcome) error {
	deadline, _ := ctx.Deadline()
	conn, err := t.dial(ctx, w.Parent, w.Tree, deadline)
	if err != nil {
		return err
	}
	stop := wire.CloseOnEnd(ctx, conn)
	var kind byte
	var body []byte
	for kind != frameRoster && err == nil {
		if kind, body, err = wire.ReadFrame(conn, nil, maxRosterBytes); err == nil && kind != frameRoster && kind != framePing {
			err = fmt.Errorf("malformed tree connection: frame %d before the roster", kind)
		}
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	var r roster
	if err == nil {
		r, err = decodeJSON[roster](body)
	}
	if err == nil {
		err = r.valid(t.self.Size)
	}
	if err == nil && r.Hash != w.Hash {
		err = errors.New("roster of another layout")
	}
	if err != nil {
		conn.Close()
		return err
	}
	t.adopt(&r)
	t.mu.Lock()
	t.parent = w.Parent
	t.addEdge(conn, w.Parent)
	t.mu.Unlock()
	return nil
}

// dial opens a tree connection to a rank.
func (t *tree) dial(ctx context.Context, rank int, address string, deadline time.Time) (net.Conn, error) {
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return t.greet(ctx, conn, rank, deadline)
}

// greet makes a new connection to a rank one of the tree, or closes it. A first sign of life shows the other end that this
// one goes on with the connection (enter).
func (t *tree) greet(ctx context.Context, conn net.Conn, rank int, deadline time.Time) (net.Conn, error) {
	stop := wire.CloseOnEnd(ctx, conn)
	t.mu.Lock()
	self := t.self
	t.mu.Unlock()
	_, err := wire.Greet(conn, &self, wire.Tree, rank, deadline)
	if err == nil {
		_, err = conn.Write(wire.AppendFrame(nil, framePing, nil))
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// admit lets living ranks in. If this rank leaves, or has been cut off, that says nothing of the other rank, which is told
// that this one is busy: it tries again until it hears of the end of this one.
func (t *tree) admit(p wire.Peer) wire.Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closing || t.cutOff:
		return wire.Busy
	case t.givenUp(p.Rank) || p.Rank == t.self.Rank:
		return wire.Refused
	}
	return onlyFor(p, wire.Tree)
}

// enter takes a rank that hangs itself below this one, once the rank has given a sign of life: it may have given up the
// connection before it was admitted.
func (t *tree) enter(conn net.Conn, p wire.Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		conn.Close()
		return
	}
	t.work.Go(func() {
		conn.SetReadDeadline(time.Now().Add(dialWait))
		if _, _, err := wire.ReadFrame(conn, nil, maxRosterBytes); err != nil || conn.SetReadDeadline(time.Time{}) != nil {
			conn.Close()
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.givenUp(p.Rank) || t.closing {
			conn.Close()
			return
		}
		delete(t.orphans, p.Rank)
		e := t.addEdge(conn, p.Rank)
		e.roster = true
		e.ring()
	})
}
