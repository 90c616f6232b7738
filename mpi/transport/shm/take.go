package shm

import (
	"github.com/fisterra-hpc/fisterra/internal/fence"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Take implements transport.Taker.
func (p *Provider) Take(peer int, want *transport.Header, buf []byte, looks int) (int, transport.Find) {
	ep := p.peers[peer]
	if ep == nil || ep.state != up || ep.reading {
		return 0, transport.Other
	}
	p.polls++
	p.calm()
	in := &ep.in
	if ep.pause.Timed() && !ep.lookTimed(looks) {
		return 0, transport.Nothing
	}
	w0, ok := ep.look()
	for ; !ok; w0, ok = ep.look() {
		if looks--; looks <= 0 {
			return 0, transport.Nothing
		}
		ep.pause.Pass()
	}
	fence.Ahead(&ep.nextCell()[0]) // for the answer: the peer, who looks for it, had that line last
	c := &in.cells[in.next&cellMask]
	if cellKind(w0) != want.Kind || c[1] != envelope(want) {
		return 0, transport.Other
	}
	n := cellInline(w0)
	switch cellForm(w0) {
	case formShort:
		if n > shortBytes || n > len(buf) {
			return 0, transport.Other
		}
		memcopy.Short(buf, c.bytes(2, n))
	case formRing:
		var h transport.Header
		c.header(want.Kind, &h)
		payload, err := in.ringPayload(c)
		if n = len(payload); err != nil || n > len(buf) || uint64(n) != h.Bytes || h.Token != 0 || h.Aux != 0 {
			return 0, transport.Other
		}
		copy(buf, payload)
		in.bytes += n
	case formRun:
		payload, err := c.runPart(w0, in.parts)
		if n = len(payload); err != nil || n > len(buf) {
			return 0, transport.Other
		}
		memcopy.Short(buf, payload)
		in.run = w0 &^ countBits
		in.parts++
		return n, transport.Taken
	default:
		return 0, transport.Other
	}
	ep.advance()
	if in.want.Load() != 0 && in.next != in.credited {
		ep.giveCredit()
	}
	return n, transport.Taken
}

// Pass implements transport.Taker.
func (p *Provider) Pass(peer int) {
	if ep := p.peers[peer]; ep != nil {
		ep.pause.Pass()
	} else {
		p.pause.Pass()
	}
}

// lookTimed looks for something that has not been read, at most so many times, and learns how near the peer is.
func (ep *endpoint) lookTimed(looks int) (found bool) {
	return ep.pause.Look(looks, ep.arrived)
}
