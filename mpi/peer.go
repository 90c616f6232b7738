package mpi

import (
	"fmt"
	"strings"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// The other ranks: by which provider each is reached, and what is kept of it.

// pathfinder is a provider that can say how messages to a peer travel, once
// the two have met.
type pathfinder interface{ Path(peer int) string }

// route is how a peer is reached.
type route struct {
	provider int // index, -1: none
	reason   string
}

// peer is what the engine keeps about another rank it has talked to.
type peer struct {
	rank      int
	elsewhere bool // it runs on another core, and looks for what it sends are cheap
	provider  transport.Provider
	memory    transport.Memory // nil: cannot pull
	taker     transport.Taker  // nil: arrivals come by Poll only
	caps      transport.Caps
	// instantBytes is the size from which a send looks for other ways than an eager message: 0 once the peer is lost.
	instantBytes int
	credit       int // bytes that may still be sent eagerly
	owed         int // bytes consumed and not yet credited back
	mostOwed     int // owed bytes at which they are credited back
	held         int // bytes of its eager messages that no receive has asked for yet
	// Announcements of large messages that no receive has asked for yet.
	announced int
	out       outbox
	lost      error
}

func (e *engine) caps() DeviceCaps {
	c := DeviceCaps{Name: "fisterra", NamesLost: true, CancelsSends: true, SleepsInKernel: true}
	for _, p := range e.providers {
		c.SizesOnly = c.SizesOnly || p.Caps().SizesOnly
	}
	c.Windows = !c.SizesOnly
	return c
}

func (e *engine) transport(rank int) (name, reason string) {
	if rank == e.rank {
		return "self", "the rank itself"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.route(rank)
	if r.provider < 0 {
		return "none", r.reason
	}
	return e.providers[r.provider].Name(), r.reason
}

// path says how large messages to a rank travel, if that is known.
func (e *engine) path(rank int) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.route(rank); r.provider >= 0 && !e.closed {
		if p, ok := e.providers[r.provider].(pathfinder); ok {
			return p.Path(rank)
		}
	}
	return ""
}

// route picks for a peer the first provider that can reach it.
func (e *engine) route(rank int) *route {
	if e.routes[rank] != nil {
		return e.routes[rank]
	}
	r := &route{provider: -1}
	e.routes[rank] = r
	if rank == e.rank {
		r.reason = "the rank itself"
		return r
	}
	var why []string
	for i, p := range e.providers {
		address, ok := e.members[rank].Addresses[p.Name()]
		if !ok {
			why = append(why, p.Name()+": not published by the rank")
			continue
		}
		if err := p.Connect(rank, address); err != nil {
			why = append(why, fmt.Sprintf("not %s: %v", p.Name(), err))
			continue
		}
		r.provider = i
		if p.Caps().SameHost {
			why = append(why, "same host")
		} else {
			why = append(why, "reachable by "+p.Name())
		}
		break
	}
	r.reason = strings.Join(why, "; ")
	return r
}

// peer returns the state of a rank, made on first use.
func (e *engine) peer(rank int) *peer {
	if p := e.peers[rank]; p != nil {
		return p
	}
	return e.newPeer(rank)
}

// markLost notes that a peer is lost.
func (p *peer) markLost(err error) { p.lost, p.instantBytes = err, 0 }

func (e *engine) newPeer(rank int) *peer {
	p := &peer{rank: rank}
	r := e.route(rank)
	if e.closed {
		p.lost = ErrClosed
	} else if r.provider < 0 {
		p.lost = fmt.Errorf("%w: %s", ErrTransport, r.reason)
	} else {
		p.provider = e.providers[r.provider]
		e.serving[r.provider] = true
		p.memory, _ = p.provider.(transport.Memory)
		p.taker, _ = p.provider.(transport.Taker)
		p.elsewhere = p.taker != nil && e.homes.apart(e.rank, rank)
		p.caps = p.provider.Caps()
		p.credit, p.mostOwed = p.caps.CreditBytes, p.caps.CreditBytes/2
		p.instantBytes = p.caps.RendezvousBytes
		if p.memory != nil {
			p.instantBytes = min(p.instantBytes, p.caps.PullBytes)
		}
	}
	e.peers[rank] = p
	return p
}
