package shm

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// An encounter is the making of one pair's link. It runs on goroutines and is
// guarded by meetings.mu, not by the world's lock.
type encounter struct {
	phase  meetPhase
	wanted bool // this rank wants the link: a failure is a loss
	ended  chan struct{}
	link   *link
	err    error
}

type meetPhase uint8

const (
	meetIdle meetPhase = iota
	meetDialling
	meetAccepting
	meetEnded // with a link or an error
)

type meetings struct {
	mu        sync.Mutex
	byRank    map[int]*encounter
	addresses map[int]address
	closed    bool
}

// news is what the goroutines tell the next Poll.
type news struct {
	fresh  atomic.Bool
	mu     sync.Mutex
	events []event
}

type event struct {
	rank    int
	link    *link // made, or changed
	changed bool  // its socket has ended or failed
	err     error // it could not be made
}

// tell hands an event to the next Poll and wakes the rank for it.
func (p *Provider) tell(e event) {
	p.news.mu.Lock()
	p.news.events = append(p.news.events, e)
	p.news.mu.Unlock()
	p.news.fresh.Store(true)
	ring(p.bell.bell)
}

// hear takes the events that goroutines have told.
func (p *Provider) hear() (n int) {
	p.news.fresh.Store(false)
	p.news.mu.Lock()
	events := p.news.events
	p.news.events = nil
	p.news.mu.Unlock()
	if !p.bell.asleep {
		p.bell.quiet()
	}
	for _, e := range events {
		ep := p.endpoint(e.rank)
		switch {
		case e.err != nil:
			ep.fail(fmt.Errorf("meeting rank %d: %w", e.rank, e.err))
		case e.changed:
			if ep.link == e.link {
				ep.heed()
			}
		case ep.state >= leaving:
			p.forget(ep.rank)
			e.link.close()
		default:
			ep.attach(e.link)
			ep.heed() // the link's end may have been told before the link
			p.live = append(p.live, ep)
			if p.hotCount < hotPeers {
				p.warm(ep)
			}
			p.cfg.Log.Debug("shm: connected", "peer", ep.rank, "path", e.link.path)
		}
		n++
	}
	return n
}

// heed finds out whether the link's socket has ended or failed.
func (ep *endpoint) heed() {
	select {
	case <-ep.link.ended:
		ep.hungup, ep.p.sweepAll = true, true
	default:
	}
	select {
	case <-ep.link.failed:
		ep.fail(ep.link.fault)
	default:
	}
}

// met finds or makes the meeting with a rank. The caller holds mu.
func (m *meetings) met(rank int) *encounter {
	t := m.byRank[rank]
	if t == nil {
		t = &encounter{ended: make(chan struct{})}
		m.byRank[rank] = t
	}
	return t
}

// meet begins to connect to the peer, if nobody has.
func (ep *endpoint) meet() {
	if ep.state == apart {
		ep.state = meeting
		if _, err := ep.p.want(ep.rank); err != nil {
			ep.fail(err)
		}
	}
}

// want makes the link to a rank, unless it is made already.
func (p *Provider) want(rank int) (*encounter, error) {
	p.meetings.mu.Lock()
	defer p.meetings.mu.Unlock()
	if p.meetings.closed {
		return nil, errClosed
	}
	t := p.meetings.met(rank)
	if t.phase == meetIdle {
		to, known := p.meetings.addresses[rank]
		if !known {
			return nil, fmt.Errorf("rank %d: its address is not known", rank)
		}
		t.phase = meetDialling
		p.running.Go(func() { p.dial(rank, to, t) })
	}
	t.wanted = true
	return t, nil
}

// dial makes the link to a rank from this side.
func (p *Provider) dial(rank int, to address, t *encounter) {
	deadline := time.Now().Add(p.cfg.HandshakeTimeout)
	l, err := p.call(rank, to, deadline)
	if errors.Is(err, errCrossed) {
		// The peer's own dialling makes the link.
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case <-t.ended:
			return
		case <-p.ctx.Done():
			err = net.ErrClosed
		case <-timer.C:
			err = fmt.Errorf("it did not connect within %v", p.cfg.HandshakeTimeout)
		}
	}
	p.end(rank, t, meetDialling, l, err)
}

func (p *Provider) call(rank int, to address, deadline time.Time) (*link, error) {
	conn, err := p.reach(to, deadline)
	if err != nil {
		return nil, err
	}
	p.track(conn)
	defer p.untrack(conn)
	conn.SetDeadline(deadline)
	side := party{conn: conn, cfg: &p.cfg, bell: p.bell, habit: p.habit}
	l, err := side.dialler(rank)
	if err == nil {
		conn.SetDeadline(time.Time{})
	}
	return l, err
}

// reach connects to a peer's socket. Where more connections wait there than the kernel keeps, reach tries again: Go's dialler
// does not wait for room.
func (p *Provider) reach(to address, deadline time.Time) (*net.UnixConn, error) {
	d := net.Dialer{Deadline: deadline}
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		conn, err := d.DialContext(p.ctx, "unixpacket", to.socket())
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		again := time.NewTimer(pause)
		select {
		case <-p.ctx.Done(): // the next DialContext returns the error
			again.Stop()
		case <-again.C:
		}
	}
}

// end ends a meeting with the link or the error of the goroutine that dialled or accepted, as from says, unless the meeting
// is no longer that goroutine's.
func (p *Provider) end(rank int, t *encounter, from meetPhase, l *link, err error) {
	p.meetings.mu.Lock()
	if t.phase != from || p.meetings.closed {
		p.meetings.mu.Unlock()
		if l != nil {
			l.close()
		}
		return
	}
	if err != nil && !t.wanted {
		t.phase = meetIdle
		p.meetings.mu.Unlock()
		p.cfg.Log.Debug("shm: a peer did not finish connecting", "peer", rank, "err", err)
		return
	}
	t.phase, t.link, t.err = meetEnded, l, err
	close(t.ended)
	if l != nil {
		p.running.Go(func() { p.attend(rank, l) })
	}
	p.meetings.mu.Unlock()
	p.tell(event{rank: rank, link: l, err: err})
}

// admit decides whether a rank that has dialled this one may go on.
func (p *Provider) admit(rank int) error {
	p.meetings.mu.Lock()
	defer p.meetings.mu.Unlock()
	t := p.meetings.met(rank)
	switch {
	case p.meetings.closed:
		return net.ErrClosed
	case t.phase == meetIdle, t.phase == meetDialling && rank < p.cfg.Rank:
		t.phase = meetAccepting
		return nil
	case t.phase == meetDialling:
		return errCrossed
	case t.err != nil:
		return fmt.Errorf("rank %d has given rank %d up: %w", p.cfg.Rank, rank, t.err)
	default:
		return fmt.Errorf("rank %d has connected already", rank)
	}
}

// refuse ends the making of a link for good.
func (p *Provider) refuse(rank int) {
	p.meetings.mu.Lock()
	defer p.meetings.mu.Unlock()
	if t := p.meetings.met(rank); t.phase != meetEnded {
		t.phase, t.err = meetEnded, errDetached
		close(t.ended)
	}
}

// forget drops a rank's link, which the caller closes.
func (p *Provider) forget(rank int) {
	p.meetings.mu.Lock()
	defer p.meetings.mu.Unlock()
	t := p.meetings.met(rank)
	t.link, t.err = nil, errDetached
}

// strangers bounds the connections that have not proved who they are: there is room for all peers at once.
func (p *Provider) strangers() int { return max(256, p.cfg.Size+64) }

// listen accepts the peers that dial this rank.
func (p *Provider) listen() {
	strangers := make(chan struct{}, p.strangers())
	for {
		conn, err := p.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			p.cfg.Log.Warn("shm: accepting", "err", err)
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond): // out of descriptors, most likely
			}
			continue
		}
		select {
		case strangers <- struct{}{}:
		case <-p.ctx.Done():
			conn.Close()
			return
		}
		p.running.Go(func() {
			defer func() { <-strangers }()
			p.answer(conn)
		})
	}
}

// answer makes a link from the side that was dialled.
func (p *Provider) answer(conn *net.UnixConn) {
	p.track(conn)
	defer p.untrack(conn)
	conn.SetDeadline(time.Now().Add(p.cfg.HandshakeTimeout))
	side := party{conn: conn, cfg: &p.cfg, bell: p.bell, habit: p.habit}
	var t *encounter
	l, err := side.acceptor(func(rank int) error {
		if err := p.admit(rank); err != nil {
			return err
		}
		p.meetings.mu.Lock()
		t = p.meetings.met(rank)
		p.meetings.mu.Unlock()
		return nil
	})
	if t == nil {
		if !errors.Is(err, errCrossed) {
			p.cfg.Log.Debug("shm: turned away a connection", "err", err)
		}
		return
	}
	if err == nil {
		conn.SetDeadline(time.Time{})
	}
	p.end(int(side.peer.From), t, meetAccepting, l, err)
}
