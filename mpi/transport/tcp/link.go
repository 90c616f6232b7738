package tcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// link is what the holder of the world's lock knows of a peer.
type link struct {
	address netip.AddrPort
	conn    *conn
	dialled bool
	gone    bool
}

// linkState is the same peer as seen by the goroutines that dial and accept.
type linkState struct {
	phase linkPhase
	up    chan struct{} // closed when an inbound connection ends the dialling
}

type linkPhase uint8

const (
	linkIdle linkPhase = iota
	linkDialling
	linkUp
	linkGone
)

// arrival is what such a goroutine hands over through Poll: a socket, or why there
// is none.
type arrival struct {
	peer int
	fd   int
	err  error
}

// dial starts to connect to peer, once. The answer to a send meanwhile is Full.
func (p *Provider) dial(peer int) transport.Outcome {
	l := &p.links[peer]
	if l.gone || p.closed {
		return transport.Gone
	}
	if l.dialled {
		return transport.Full
	}
	l.dialled = true
	if !l.address.IsValid() {
		p.losses = append(p.losses, loss{peer, errors.New("tcp: no address: Connect was not called")})
		return transport.Gone
	}
	p.mu.Lock()
	state := &p.states[peer]
	if state.phase == linkIdle {
		state.phase, state.up = linkDialling, make(chan struct{})
		p.dials.Go(func() { p.connect(peer, l.address, state.up) })
	}
	p.mu.Unlock()
	return transport.Full
}

// connect runs on a goroutine of its own until there is a connection, made by either side, or ConnectTimeout is over. It
// gives up earlier only on an answer: nobody listens there, or this rank is not wanted. After any other failure it tries
// again: what the network or this host cannot do now (a link is down, no descriptor is left) it may do a moment later.
func (p *Provider) connect(peer int, to netip.AddrPort, up <-chan struct{}) {
	self, ok := p.self(p.ctx.Done())
	if !ok {
		return
	}
	deadline := time.Now().Add(p.cfg.ConnectTimeout)
	dialer := net.Dialer{Deadline: deadline, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.host, 0)), Control: sharePort}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := p.greet(&dialer, &self, peer, to)
		if err == nil {
			p.deliverConn(peer, conn)
			return
		}
		p.log.Debug("tcp: no connection yet", "peer", peer, "err", err)
		again := time.NewTimer(min(pause, time.Until(deadline)))
		switch {
		case errors.Is(err, wire.ErrBusy):
			// The peer, of lower rank, is dialling too; its connection is the one.
			again.Reset(time.Until(deadline))
		case errors.Is(err, unix.ECONNREFUSED),
			errors.Is(err, wire.ErrStranger), errors.Is(err, wire.ErrRefused), errors.Is(err, wire.ErrLayoutHash):
			again.Stop()
			p.giveUp(peer, fmt.Errorf("tcp: %s: %w", to, err))
			return
		}
		select {
		case <-up:
			again.Stop()
			return
		case <-p.ctx.Done():
			again.Stop()
			return
		case <-again.C:
		}
		if !time.Now().Before(deadline) {
			p.giveUp(peer, fmt.Errorf("tcp: %s: no connection within %v: %w", to, p.cfg.ConnectTimeout, err))
			return
		}
	}
}

// greet dials the peer once and says the hello.
func (p *Provider) greet(dialer *net.Dialer, self *wire.Self, peer int, to netip.AddrPort) (net.Conn, error) {
	conn, err := dialer.DialContext(p.ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	stop := wire.CloseOnEnd(p.ctx, conn)
	_, err = wire.Greet(conn, self, wire.Data, peer, dialer.Deadline)
	if !stop() && err == nil {
		err = p.ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// admit decides on an inbound connection. When both sides dial, the one dialled
// by the lower rank stands.
func (p *Provider) admit(from wire.Peer) wire.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if from.Purpose != wire.Data || from.Rank == p.cfg.Rank {
		return wire.Refused
	}
	state := &p.states[from.Rank]
	switch state.phase {
	case linkIdle:
	case linkDialling:
		if p.cfg.Rank < from.Rank {
			return wire.Busy
		}
		close(state.up)
	case linkUp: // both dialled, and the connection from here stands
		return wire.Busy
	default:
		return wire.Refused
	}
	state.phase = linkUp
	return wire.Admitted
}

// enter takes an inbound connection that admit has let in.
func (p *Provider) enter(conn net.Conn, from wire.Peer) {
	fd, err := p.takeSocket(conn)
	p.post(arrival{from.Rank, fd, err})
}

// deliverConn takes a dialled connection, unless the peer is gone or has got
// through from its side.
func (p *Provider) deliverConn(peer int, conn net.Conn) {
	p.mu.Lock()
	mine := p.states[peer].phase == linkDialling
	if mine {
		p.states[peer].phase = linkUp
	}
	p.mu.Unlock()
	if !mine {
		conn.Close()
		return
	}
	fd, err := p.takeSocket(conn)
	p.post(arrival{peer, fd, err})
}

// giveUp reports that dialling failed, unless that does not matter any more.
func (p *Provider) giveUp(peer int, err error) {
	p.mu.Lock()
	mine := p.states[peer].phase == linkDialling
	if mine {
		p.states[peer].phase = linkGone
	}
	p.mu.Unlock()
	if mine && p.ctx.Err() == nil {
		p.post(arrival{peer: peer, fd: -1, err: err})
	}
}

// post hands an arrival to the next Poll and wakes a sleeping rank. It rings under the lock: a bell rung after adopt has
// taken the arrival would stay readable, and keep the rank awake, until the next arrival.
func (p *Provider) post(a arrival) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived = append(p.arrived, a)
	p.inbox.Store(true)
	one := [8]byte{1}
	unix.Write(p.bell, one[:])
}

// adopt turns arrivals into connections and losses.
func (p *Provider) adopt(s transport.Sink) int {
	p.mu.Lock()
	arrived := p.arrived
	p.arrived = nil
	p.inbox.Store(false)
	var count [8]byte
	unix.Read(p.bell, count[:])
	p.mu.Unlock()
	for _, a := range arrived {
		l := &p.links[a.peer]
		switch {
		case l.gone:
			if a.fd >= 0 {
				unix.Close(a.fd)
			}
		case a.err != nil:
			p.lose(s, a.peer, a.err)
		default:
			if err := p.attach(a.peer, a.fd); err != nil {
				p.lose(s, a.peer, err)
			}
		}
	}
	return len(arrived)
}

// attach makes a connection of a socket. The connection owns the socket even where attach fails: drop closes it.
func (p *Provider) attach(peer, fd int) error {
	c := &conn{p: p, peer: peer, fd: fd, index: len(p.conns)}
	p.conns = append(p.conns, c)
	p.links[peer].conn = c
	if p.epoll >= 0 {
		return c.register()
	}
	if len(p.conns) > directConns {
		return p.registerAll()
	}
	if err := c.rewatch(); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	return nil
}

// registerAll makes the epoll set, of all connections or not at all.
func (p *Provider) registerAll() (err error) {
	p.unwatch() // each socket; the next Arm has the Set watch the epoll set
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("tcp: epoll: %w", err)
	}
	for _, c := range p.conns {
		if err := c.register(); err != nil {
			unix.Close(p.epoll)
			p.epoll = -1
			return err
		}
	}
	return nil
}

func (c *conn) register() error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(c.peer)}
	if err := unix.EpollCtl(c.p.epoll, unix.EPOLL_CTL_ADD, c.fd, &event); err != nil {
		return fmt.Errorf("tcp: epoll: %w", err)
	}
	return nil
}

// lose reports a peer as lost, once, after completing the operations that were still under way with it.
func (p *Provider) lose(s transport.Sink, peer int, err error) {
	l := &p.links[peer]
	if l.gone {
		return
	}
	l.gone = true
	p.mu.Lock()
	p.states[peer].phase = linkGone
	p.mu.Unlock()
	if l.conn != nil {
		p.drop(l.conn, fmt.Errorf("%w: %w", transport.ErrGone, err))
	}
	p.finish(s)
	s.Lost(peer, err)
}

// drop closes a connection and ends the use of the memory it was given.
func (p *Provider) drop(c *conn, err error) {
	if c.closed {
		return
	}
	c.closed = true
	p.links[c.peer].conn = nil
	last := len(p.conns) - 1
	p.conns[c.index] = p.conns[last]
	p.conns[c.index].index = c.index
	p.conns[last] = nil
	p.conns = p.conns[:last]
	if p.hot == c {
		p.hot = nil
	}
	if c.blocked {
		c.blocked = false
		p.blocked--
	}
	for _, it := range c.out.items[c.out.first:] {
		if it.hasOp {
			p.done = append(p.done, completion{it.op, err})
		}
	}
	p.pools.put(c.out.stage)
	p.pools.put(c.in.buffer)
	c.out, c.in.body, c.in.buffer = output{}, nil, nil
	_ = c.watch(0) // which does not fail
	unix.Close(c.fd)
}

// finish hands completions and losses to the sink.
func (p *Provider) finish(s transport.Sink) int {
	n := 0
	for len(p.done) > 0 {
		// The sink may give us more to do, and more completions with it.
		done := p.done
		p.done = p.spare[:0]
		for _, d := range done {
			s.Complete(d.op, d.err)
		}
		n += len(done)
		clear(done)
		p.spare = done[:0]
	}
	return n
}

func socketError(errno syscall.Errno) error {
	return fmt.Errorf("tcp: connection broke: %w", errno)
}
