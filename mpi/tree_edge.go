package mpi

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"golang.org/x/sys/unix"
)

// edge is one connection of the tree. A reader and a writer goroutine serve
// it; its queue holds each fact at most once, so it is bounded by the size of the world.
type edge struct {
	t    *tree
	rank int
	conn net.Conn
	// lastHeard is when something last came, in nanoseconds since the tree's
	// beginning of time.
	lastHeard atomic.Int64

	// Under the tree's lock.
	queue  []fact
	roster bool // to be sent first
	last   bool // nothing comes after the queue: then the connection is closed
	bell   chan struct{}
	done   chan struct{} // closed when the reader has ended
}

// beginning is the tree's clock's zero; times are monotonic differences to it.
var beginning = time.Now()

// lastWait bounds how long a closing connection waits for the other side to take what is said last,
// and then to end. During an outage of the network the wait is as long as a neighbour may be silent.
const lastWait = time.Second

// addEdge takes a connection into service. Callers hold the lock.
func (t *tree) addEdge(conn net.Conn, rank int) *edge {
	if old := t.edges[rank]; old != nil { // it came again: the newer one counts
		old.conn.Close()
	}
	t.resendSoon(conn)
	e := &edge{t: t, rank: rank, conn: conn, bell: make(chan struct{}, 1), done: make(chan struct{})}
	e.heard()
	t.edges[rank] = e
	e.queue = t.facts()
	t.work.Go(e.read)
	t.work.Go(e.write)
	e.ring()
	return e
}

// tcpRTOMaxMs is TCP_RTO_MAX_MS of Linux from 6.15 on.
const tcpRTOMaxMs = 44

// resendSoon has TCP send again at least each second, where it would double the pause each time: after an outage
// of 8 s the next attempt might come another 8 s later, when the peer timeout is over. Kernels that do not know this
// bound at least do not double the first six pauses. TCP would give up after 15 attempts, and the shorter the pauses, the
// sooner: so it is told to go on until the peer timeout is over for certain. Without a peer timeout TCP's pauses stay.
func (t *tree) resendSoon(conn net.Conn) {
	c, ok := conn.(*net.TCPConn)
	if !ok || t.timeout == 0 {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return // it is closed, as its reader finds out
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMaxMs, 1000)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(min(2*t.timeout.Milliseconds(), math.MaxInt32)))
	})
}

func (e *edge) heard() { e.lastHeard.Store(int64(time.Since(beginning))) }

func (e *edge) silence() time.Duration {
	return time.Since(beginning) - time.Duration(e.lastHeard.Load())
}

func (e *edge) ring() {
	select {
	case e.bell <- struct{}{}:
	default:
	}
}

// tell queues a fact. Callers hold the tree's lock.
func (e *edge) tell(f fact) {
	e.queue = append(e.queue, f)
	e.ring()
}

// finish has the writer send what is queued and close. The deadline ends a write that is going on to
// a neighbour that does not read. Callers hold the lock.
func (e *edge) finish() {
	e.last = true
	e.conn.SetWriteDeadline(time.Now().Add(lastWait))
	e.ring()
}

func (e *edge) write() {
	var pause <-chan time.Time
	var ticker *time.Ticker
	if every := e.t.interval(); every > 0 {
		ticker = time.NewTicker(every)
		defer ticker.Stop()
		pause = ticker.C
	}
	for {
		var out []byte
		select {
		case <-e.bell:
		case <-pause:
			out = wire.AppendFrame(out, framePing, nil)
		case <-e.done:
			e.conn.Close()
			return
		}
		e.t.mu.Lock()
		queue, roster, last := e.queue, e.roster, e.last
		e.queue = nil
		if roster && e.t.roster != nil {
			out = wire.AppendFrame(out, frameRoster, encodeJSON(e.t.roster))
			e.roster = false
		}
		e.t.mu.Unlock()
		if len(queue) > 0 {
			out = wire.AppendFrame(out, frameFacts, encodeJSON(queue))
		}
		if last { // counted from now: this process may have stood still since finish
			e.conn.SetWriteDeadline(time.Now().Add(lastWait))
		}
		if len(out) > 0 {
			if _, err := e.conn.Write(out); err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) { // the reader finds out why, and takes what the neighbour said before
					e.conn.SetReadDeadline(time.Now().Add(lastWait))
					<-e.done
				}
				e.conn.Close()
				return
			}
		}
		if last {
			e.end()
			return
		}
	}
}

// end closes for writing and waits for the other side to do the same, since
// closing with unread input would take back what was just sent.
func (e *edge) end() {
	defer e.conn.Close()
	c, ok := e.conn.(*net.TCPConn)
	if !ok || c.CloseWrite() != nil {
		return
	}
	timer := time.NewTimer(lastWait)
	defer timer.Stop()
	for begin := time.Now(); ; timer.Reset(lastWait / 10) {
		select {
		case <-e.done:
			return
		case <-timer.C:
		}
		// Go on while what was sent has not been taken: an outage may keep it back, and a goodbye that never comes is a loss.
		if time.Since(begin) > e.t.timeout || e.givenUp() || !untaken(c) {
			return
		}
	}
}

func (e *edge) givenUp() bool {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	return e.t.givenUp(e.rank)
}

// untaken reports whether the other side's host has yet to acknowledge what was sent.
func untaken(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	left := 0
	return raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }) == nil && err == nil && left > 0
}

func (e *edge) read() {
	defer close(e.done)
	var buf []byte
	for {
		kind, body, err := wire.ReadFrame(e.conn, buf, maxRosterBytes)
		if err == nil {
			buf = body
			e.heard()
			err = e.t.take(e, kind, body)
		}
		if err != nil {
			e.t.broken(e, err)
			return
		}
	}
}

// take handles one frame.
func (t *tree) take(e *edge, kind byte, body []byte) error {
	switch kind {
	case framePing, frameRoster: // a rank that moves has the roster already
		return nil
	case frameFacts:
		facts, err := decodeJSON[[]fact](body)
		if err != nil {
			return err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		// A neighbour that has been given up meanwhile may have stood still, and take ranks for silent because it has not
		// listened. But a goodbye that it passes on is the word of the rank that leaves.
		givenUp := t.givenUp(e.rank)
		for _, f := range facts {
			if f.Left || !givenUp {
				t.learn(f, e)
			}
		}
		return nil
	}
	return fmt.Errorf("malformed tree connection: frame %d", kind)
}

// goneEarly is why a rank that has left is lost.
const goneEarly = "it said goodbye and ended before the others had"

// broken ends an edge whose connection is gone: the neighbour has left, or is
// lost.
func (t *tree) broken(e *edge, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.conn.Close()
	if t.edges[e.rank] != e {
		return
	}
	delete(t.edges, e.rank)
	switch {
	case t.closing:
	case t.left[e.rank]:
		t.away[e.rank] = true
		t.learn(fact{Rank: e.rank, Gone: true, Why: goneEarly}, e)
		if t.parent == e.rank && !t.isParted() {
			t.move()
		}
	default:
		why := fmt.Sprintf("its connection to rank %d broke: %v", t.self.Rank, err)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			why = "its process ended without a goodbye"
		}
		t.learn(fact{Rank: e.rank, Why: why}, e)
	}
}
