package tcp

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// directConns is the number of connections up to which Poll reads each of them;
// with more it asks an epoll set which have something, after the one that had
// something last.
const directConns = 4

// maxStreak bounds how long one busy connection keeps the others waiting.
const maxStreak = 8

var errHangup = errors.New("tcp: the peer closed the connection without a goodbye")

func (p *Provider) Poll(s transport.Sink) int {
	events := 0
	if p.inbox.Load() {
		events += p.adopt(s)
	}
	for len(p.losses) > 0 {
		l := p.losses[0]
		p.losses = p.losses[1:]
		p.lose(s, l.peer, l.err)
		events++
	}
	if p.blocked > 0 {
		events += p.resume()
	}
	if p.epoll < 0 {
		for i := 0; i < len(p.conns); i++ {
			events += p.conns[i].receive(s)
		}
		if events == 0 && len(p.conns) > 0 {
			p.standBack()
		}
	} else {
		events += p.sweep(s)
	}
	if p.blocked > 0 {
		events += p.bury(s)
	}
	if len(p.done) > 0 {
		events += p.finish(s)
	}
	if events > 0 {
		p.noteLively()
	}
	return events
}

// standBackLooks is how long a connection is left alone after a read in vain: a
// third of a microsecond.
const standBackLooks = 600

// standBack lets the network have the sockets for a moment. A read holds the
// socket's lock, and whoever delivers to the socket meanwhile has to wait for it;
// reading on and on, a waiting rank delayed its own messages by a tenth.
func (p *Provider) standBack() {
	for range standBackLooks {
		if p.inbox.Load() {
			return
		}
	}
}

// resume writes what waited for room.
func (p *Provider) resume() int {
	events := 0
	for i := 0; i < len(p.conns); i++ {
		if c := p.conns[i]; c.blocked && c.broken == nil && writable(c.fd) && c.flush() > 0 {
			events++
		}
	}
	return events
}

// bury reports connections whose sending side broke and whose input is
// exhausted.
func (p *Provider) bury(s transport.Sink) int {
	events := 0
	for i := 0; i < len(p.conns); i++ {
		c := p.conns[i]
		if c.broken == nil {
			continue
		}
		for !c.closed && c.receive(s) > 0 {
			events++
		}
		if !c.closed {
			p.lose(s, c.peer, c.broken)
			events++
		}
		i--
	}
	return events
}

// sweep reads the connections that have something, first the one that had something last.
func (p *Provider) sweep(s transport.Sink) int {
	events := 0
	if p.hot != nil {
		if events = p.hot.receive(s); events > 0 && p.streak < maxStreak {
			p.streak++
			return events
		}
	}
	p.streak = 0
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll),
		uintptr(unsafe.Pointer(&p.ready[0])), uintptr(len(p.ready)), 0, 0, 0)
	if errno != 0 {
		return events
	}
	for _, r := range p.ready[:n] {
		c := p.links[r.Fd].conn
		if c == nil {
			continue
		}
		if more := c.receive(s); more > 0 {
			events += more
			if !c.closed {
				p.hot = c
			}
		}
	}
	return events
}
