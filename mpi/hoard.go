package mpi

import (
	"fmt"
	"iter"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// What a peer can make this rank keep is bounded, also where the peer heeds no bound: of eager messages by its
// credit (charge), of announcements and refusals of large ones by mostAnnounced, of each other kind of small
// thing by mostKept.

// mostKept is how many things of a kind one peer may have this rank keep: questions about, and revocations
// of, communicators that this rank does not have; agreements; wishes for a lock; answers about windows that
// have yet to leave. An honest peer has a communicator, a call of Shrink or a waiting goroutine behind each.
const mostKept = 1 << 20

// mostAnnounced is how many large messages of one peer may wait here, either to be received or for the peer to hear that
// they are refused. MPI sets no bound, and a sender held back at one might keep back the very message that is to be
// received first. So the bound is far beyond what programs have under way. A message costs at most 160 bytes here, less
// than it costs its sender; as many as the bound allows cost 640 MiB.
const mostAnnounced = 1 << 22

// hoards reports whether a peer has this rank keep too many things of a kind, and loses the peer then. The things of all
// peers are in all, total in number; its tells which are this peer's, and is asked only when total has reached the bound.
func hoards[T any](e *engine, rank int, what string, total int, all iter.Seq[T], its func(T) bool) bool {
	if total < e.mostKept {
		return false
	}
	n := 0
	for x := range all {
		if its(x) {
			n++
		}
	}
	if n < e.mostKept {
		return false
	}
	e.tooMany(rank, what, n)
	return true
}

func (e *engine) tooMany(rank int, what string, n int) {
	e.lose(rank, fmt.Sprintf("it has %d %s waiting here, and no more than %d are kept", n, what, e.mostKept))
}

// announced counts an announcement to be kept. If its sender has too many, it loses the sender and reports false.
func (e *engine) announced(a *arrival) bool {
	p := e.peer(int(a.env.source))
	if n := p.announced + p.out.answers; n >= e.mostAnnounced {
		e.lose(p.rank, fmt.Sprintf("it has %d large messages waiting here to be received, and no more than %d are kept", n, e.mostAnnounced))
		return false
	}
	p.announced++
	return true
}

// charge counts an eager message to be kept against its sender's credit. If the sender has ignored its credit, charge
// loses the sender and reports false.
func (e *engine) charge(a *arrival) bool {
	p := e.peer(int(a.env.source))
	p.held += a.bytes + transport.EnvelopeBytes
	if p.held <= p.caps.CreditBytes {
		return true
	}
	e.lose(p.rank, fmt.Sprintf("more than its credit: it has sent %d bytes that nobody has received, and %d are allowed", p.held, p.caps.CreditBytes))
	return false
}
