package shm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

var (
	// errHangup: the socket to the peer closed without a goodbye.
	errHangup error = hangup{}
	// errDetached is what operations with a detached peer complete with.
	errDetached = errors.New("the peer was detached")
)

type hangup struct{}

func (hangup) Error() string { return "its process ended, or closed its shared memory" }

// Is lets the engine recognise a hangup as the peer's end.
func (hangup) Is(target error) bool { return target == transport.ErrGone }

// fail marks the peer as lost; the next Poll reports it.
func (ep *endpoint) fail(err error) {
	if ep.broken == nil && ep.state < leaving {
		ep.broken = err
		ep.p.ailing = append(ep.p.ailing, ep)
	}
}

// leave ends the exchange of messages with a peer. What is shared stays until
// neither rank uses the memory of the other.
func (ep *endpoint) leave(err error) {
	p := ep.p
	wasUp := ep.state == up
	ep.state = leaving
	if !wasUp {
		return
	}
	p.live = slices.DeleteFunc(p.live, func(e *endpoint) bool { return e == ep })
	p.cool(ep)
	ep.dropStreams(err)
	p.closePulls(ep, err)
	ep.closeExposures()
	ep.hangUp()
}

// hangUp closes this rank's side of the socket, unless a copy is under way: from then on the peer relies on this rank not to
// touch the peer's memory.
func (ep *endpoint) hangUp() {
	if ep.copying == 0 {
		ep.link.conn.CloseWrite()
	}
}

// stopCopy accounts for the end of a copy.
func (ep *endpoint) stopCopy() {
	if ep.copying--; ep.state == leaving {
		ep.hangUp()
	}
}

// buriable reports whether bury could do something about the peer now.
func (ep *endpoint) buriable() bool {
	return ep.state < leaving || ep.link == nil || !ep.reading && ep.quiet()
}

// quiet reports whether neither rank touches the other's memory any more.
func (ep *endpoint) quiet() bool { return ep.pulls == 0 && ep.exposuresQuiet() }

// bury reports losses and gives back what was shared with peers that are no more.
func (p *Provider) bury(s transport.Sink) (n int) {
	for i := 0; i < len(p.ailing); i++ { // the sink may add to it
		if ep := p.ailing[i]; ep.state < leaving {
			ep.leave(fmt.Errorf("%w: %w", transport.ErrGone, ep.broken))
			p.settle()
			n += p.report(s) + 1 // operations end first
			s.Lost(ep.rank, ep.broken)
		}
	}
	p.ailing = slices.DeleteFunc(p.ailing, func(ep *endpoint) bool {
		if ep.link != nil && (ep.reading || !ep.quiet()) {
			return false
		}
		ep.state = gone
		if ep.link != nil {
			p.forget(ep.rank)
			ep.link.close()
			ep.link, ep.exposures = nil, nil
			ep.in, ep.out = inbox{}, outbox{}
		}
		return true
	})
	return n
}

// Detach forgets a peer that said goodbye or was lost.
func (p *Provider) Detach(peer int) {
	ep := p.endpoint(peer)
	p.refuse(peer)
	switch ep.state {
	case apart, meeting:
		ep.state = gone
	case up:
		ep.leave(errDetached)
		if ep.broken == nil {
			ep.broken = errDetached
			p.ailing = append(p.ailing, ep)
		}
	}
}
