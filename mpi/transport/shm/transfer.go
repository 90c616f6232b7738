package shm

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// transferBytes bounds what one Poll copies of the transfers under way.
const transferBytes = 1 << 20

// transfer claims pieces of the pulls under way, this rank's own first, copies
// them outside the world's lock, and reports the pulls that are over.
func (p *Provider) transfer(s transport.Sink) (n int) {
	for left := transferBytes; left > 0; n++ {
		c := p.takeCopier()
		pl, e := p.nextCopy(c)
		if pl == nil && e == nil {
			p.giveCopier(c)
			break
		}
		p.copying.Add(1)
		s.Outside(c.run)
		p.copying.Add(-1)
		if pl != nil {
			pl.copied(c)
		} else {
			e.copied(c)
		}
		left -= len(c.local)
		p.giveCopier(c)
	}
	if len(p.pulls) > 0 {
		p.settle()
	}
	return n
}

// nextCopy claims the next piece to copy.
func (p *Provider) nextCopy(c *copier) (*pull, *exposure) {
	for _, pl := range p.pulls {
		if from, to, ok := claimFront(pl); ok {
			pl.inflight++
			pl.ep.copying++
			lo, hi := int(from)*unitBytes, min(int(to)*unitBytes, len(pl.dst))
			c.pid, c.write, c.local, c.remote = pl.ep.pid, false, pl.dst[lo:hi], pl.src+uintptr(lo)
			c.units, c.whole = to-from, len(pl.dst)
			c.timed = false
			if pl.from.there() {
				c.mapped, c.timed = pl.from.mem[lo:hi], pl.ep.times(len(pl.dst))
			}
			return pl, nil
		}
	}
	for len(p.helps) > 0 {
		e := p.helps[0]
		if from, to, ok := claimBack(e); ok {
			e.inflight++
			e.ep.copying++
			lo, hi := int(from)*unitBytes, min(int(to)*unitBytes, e.n)
			c.pid, c.write, c.local, c.remote = e.ep.pid, true, e.buf[lo:hi], e.dst+uintptr(lo)
			c.units, c.whole = to-from, e.n
			c.timed = false
			if e.into.there() {
				c.mapped = e.into.mem[lo:hi]
			}
			return nil, e
		}
		p.helps = slices.Delete(p.helps, 0, 1)
	}
	return nil, nil
}

// claimFront claims units of a pull for the rank that pulls.
func claimFront(pl *pull) (from, to uint32, ok bool) {
	for {
		c := claim(pl.slot.state.Load())
		if c.phase() != phasePulling || c.front() >= c.back() {
			return 0, 0, false
		}
		if c.back() > pl.units {
			pl.ep.fail(fmt.Errorf("rank %d, a pull of %d units up to %d: %w", pl.ep.rank, pl.units, c.back(), errMalformed))
			return 0, 0, false
		}
		n := uint32(mostBytes / unitBytes)
		if pl.shared {
			n = portion(c.back()-c.front(), pl.units)
		}
		next, from, to := c.takeFront(n)
		if pl.slot.state.CompareAndSwap(uint64(c), uint64(next)) {
			return from, to, true
		}
	}
}

// claimBack claims units for the rank whose memory is pulled.
func claimBack(e *exposure) (from, to uint32, ok bool) {
	for {
		c := claim(e.slot.state.Load())
		if c.phase() != phasePulling || c.front() >= c.back() || c.back() > units(e.n) {
			return 0, 0, false
		}
		next, from, to := c.takeBack(portion(c.back()-c.front(), units(e.n)))
		if e.slot.state.CompareAndSwap(uint64(c), uint64(next)) {
			return from, to, true
		}
	}
}

// copied accounts for a piece that this rank has read.
func (pl *pull) copied(c *copier) {
	pl.inflight--
	pl.ep.stopCopy()
	pl.done += c.units
	pl.slot.read.Add(uint64(c.units))
	if c.timed {
		pl.pace = paceOf(c.took, len(c.local), pl.ep.p.habit.once)
	}
	switch {
	case errors.Is(c.err, unix.ESRCH): // the peer has died, and its socket has not said so yet
		pl.shut(errHangup)
	case c.err != nil:
		pl.shut(c.err)
	}
	if claim(pl.slot.state.Load()).phase() == phaseClosed {
		pl.ep.notify() // the peer may wait for its memory
	}
}

// copied accounts for a piece that this rank has written for the peer.
func (e *exposure) copied(c *copier) {
	e.inflight--
	e.ep.stopCopy()
	if c.err != nil {
		e.slot.helped.Or(helpFailed)
		e.ep.p.cfg.Log.Debug("shm: helping a pull", "peer", e.ep.rank, "err", c.err)
	}
	e.slot.helped.Add(uint64(c.units))
	e.ep.notify()
}

// transferable reports whether transfer would find something to do.
func (p *Provider) transferable() bool {
	for _, pl := range p.pulls {
		c := claim(pl.slot.state.Load())
		if c.phase() == phasePulling && c.front() < c.back() {
			return true
		}
		if over, _ := pl.over(); over {
			return true
		}
	}
	for _, e := range p.helps {
		c := claim(e.slot.state.Load())
		if c.phase() == phasePulling && c.front() < c.back() {
			return true
		}
	}
	return false
}

func (p *Provider) takeCopier() *copier {
	c := p.copiers
	if c == nil {
		return newCopier()
	}
	p.copiers = c.next
	return c
}

func (p *Provider) giveCopier(c *copier) {
	c.local, c.mapped = nil, nil
	c.next, p.copiers = p.copiers, c
}
