package wire

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// DoorConfig says who may come in through a Door.
type DoorConfig struct {
	// Self is asked for every hello, since the layout is agreed on only after the listener is opened. It may block until
	// then, but no longer than until gone is closed: the connection has had to make room for another, or the Door closes.
	// Then it returns false.
	Self func(gone <-chan struct{}) (Self, bool)
	// Before is called on a fresh connection, before its hello: ranks that do
	// not know the secret yet get it here. nil: nothing comes before. Its error ends the
	// connection as that of a stranger.
	Before func(conn net.Conn, deadline time.Time) error
	// Admit decides on a peer that has proved itself; it must not block.
	Admit func(Peer) Verdict
	// Enter is given each connection for which Admit said Admitted, exactly once,
	// and owns it: even one whose other side broke it off while the verdict
	// was under way. It runs on a goroutine that Close waits for.
	Enter func(net.Conn, Peer)
	// HelloTimeout bounds one hello; 0 means 5 s.
	HelloTimeout time.Duration
	// Slots bounds the connections that have not proved themselves; 0 means 256.
	// When all are taken the oldest makes room, so idle strangers cannot keep ranks out.
	Slots int
	// LogEvery is the least time between two log lines about strangers; 0 means 5 s.
	LogEvery time.Duration
	Log      *slog.Logger // nil: silent
}

// Door accepts connections on a listener and lets in ranks of this job.
// A stranger costs one slot for a short time and at most one log line.
type Door struct {
	cfg      DoorConfig
	listener net.Listener

	mu       sync.Mutex
	room     *sync.Cond
	slots    []slot // in order of arrival
	closed   bool
	lastLog  time.Time
	unlogged int
	work     sync.WaitGroup
}

type slot struct {
	conn net.Conn
	came time.Time
	gone chan struct{} // closed when conn is closed by others than its own hello
}

func (s *slot) empty() {
	close(s.gone)
	s.conn.Close()
}

// patience is how long a hello may take before it can lose its slot to another.
const patience = 200 * time.Millisecond

// OpenDoor starts to accept on listener, which the Door closes.
func OpenDoor(listener net.Listener, cfg DoorConfig) *Door {
	if cfg.HelloTimeout == 0 {
		cfg.HelloTimeout = 5 * time.Second
	}
	if cfg.Slots == 0 {
		cfg.Slots = 256
	}
	if cfg.LogEvery == 0 {
		cfg.LogEvery = 5 * time.Second
	}
	d := &Door{cfg: cfg, listener: listener}
	d.room = sync.NewCond(&d.mu)
	d.work.Go(d.accept)
	return d
}

// Addr is the address the door listens on.
func (d *Door) Addr() net.Addr { return d.listener.Addr() }

// Close stops accepting, ends hellos in progress and waits for them. Connections
// that were handed to Enter are not touched.
func (d *Door) Close() error {
	d.mu.Lock()
	if !d.closed {
		for _, s := range d.slots {
			s.empty()
		}
	}
	d.closed = true
	d.room.Broadcast()
	d.mu.Unlock()
	err := d.listener.Close()
	d.work.Wait()
	return err
}

func (d *Door) accept() {
	backoff := time.Millisecond
	for {
		conn, err := d.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !d.again(err, &backoff) {
				return
			}
			continue
		}
		backoff = time.Millisecond
		gone := d.take(conn)
		if gone == nil {
			conn.Close()
			return
		}
		d.work.Go(func() { d.hello(conn, gone) })
	}
}

// again waits after a passing failure of accept (no descriptors left, say).
func (d *Door) again(err error, backoff *time.Duration) bool {
	d.complain("accept", err)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.waitAtMost(*backoff)
	}
	*backoff = min(2**backoff, time.Second)
	return !d.closed
}

// waitAtMost waits for room to change, or until limit has passed. The caller holds the lock. The timer takes it, too, so that
// it cannot broadcast before the caller waits.
func (d *Door) waitAtMost(limit time.Duration) {
	timer := time.AfterFunc(limit, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.room.Broadcast()
	})
	defer timer.Stop()
	d.room.Wait()
}

// take gives conn a slot, waiting for one if all are young. It returns what tells the hello that the slot has been
// emptied; nil: the door is closed.
func (d *Door) take(conn net.Conn) (gone <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.slots) >= d.cfg.Slots && !d.closed {
		oldest := d.slots[0]
		age := time.Since(oldest.came)
		if age >= patience {
			oldest.empty()
			d.slots = d.slots[1:]
			break
		}
		d.waitAtMost(patience - age)
	}
	if d.closed {
		return nil
	}
	s := slot{conn: conn, came: time.Now(), gone: make(chan struct{})}
	d.slots = append(d.slots, s)
	return s.gone
}

// leave gives the slot of conn back; false if it had been taken away.
func (d *Door) leave(conn net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, s := range d.slots {
		if s.conn == conn {
			d.slots = append(d.slots[:i], d.slots[i+1:]...)
			d.room.Broadcast()
			return true
		}
	}
	return false
}

var errMadeRoom = errors.New("it made room for another connection before this rank could say hello")

func (d *Door) hello(conn net.Conn, gone <-chan struct{}) {
	self, ok := d.cfg.Self(gone)
	if !ok {
		d.refuse(conn, errMadeRoom)
		return
	}
	admitted := false
	deadline := time.Now().Add(d.cfg.HelloTimeout)
	if d.cfg.Before != nil {
		if err := d.cfg.Before(conn, deadline); err != nil {
			d.refuse(conn, err)
			return
		}
	}
	peer, err := Welcome(conn, &self, deadline, func(p Peer) Verdict {
		// Out of the slots first: what has been admitted is not closed to make room.
		if !d.leave(conn) {
			return Refused
		}
		verdict := d.cfg.Admit(p)
		admitted = verdict == Admitted
		return verdict
	})
	if admitted {
		d.cfg.Enter(conn, peer)
		return
	}
	d.leave(conn)
	remote := conn.RemoteAddr().String()
	conn.Close()
	switch {
	case errors.Is(err, ErrBusy):
	case errors.Is(err, ErrStranger), peer == Peer{}: // peer is empty, for one, where the connection was closed to make room
		d.complain(remote, err)
	default:
		d.complain(fmt.Sprintf("%s (rank %d, %v)", remote, peer.Rank, peer.Purpose), err)
	}
}

// refuse ends a connection before it is known whose it is.
func (d *Door) refuse(conn net.Conn, err error) {
	d.leave(conn)
	conn.Close()
	d.complain(conn.RemoteAddr().String(), err)
}

// complain logs a refused connection, seldom enough that a port scan cannot
// fill a log.
func (d *Door) complain(who string, err error) {
	d.mu.Lock()
	now := time.Now()
	if d.closed || d.cfg.Log == nil || now.Sub(d.lastLog) < d.cfg.LogEvery {
		d.unlogged++
		d.mu.Unlock()
		return
	}
	d.lastLog = now
	unlogged := d.unlogged
	d.unlogged = 0
	d.mu.Unlock()
	d.cfg.Log.Warn("connection refused", "listener", d.listener.Addr().String(), "from", who, "reason", err, "unlogged", unlogged)
}
