package ps

import (
	"context"
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// reapAbove is how many answers may be on their way before the server looks
// which of them have left.
const reapAbove = 32

// answer sends a reply: the header and, if there is a page, its values, which go within the frame where they fit
// and straight from the page where they do not.
func (s *Server) answer(a asker, sl *slab, p *page) {
	h := header{op: opReply, config: s.config, table: a.h.table, block: a.h.block, seq: a.h.seq, slot: a.h.slot}
	h.aux = s.global
	if a.h.flags&flagStep != 0 || a.h.op == opStep {
		h.flags |= flagStep
	}
	if s.stopping {
		h.flags |= flagStop
	}
	if a.dropped {
		h.flags |= flagDropped
	}
	if sl != nil {
		h.version = sl.version
	}
	if p == nil {
		s.send(a, &h, nil, nil, nil)
		return
	}
	h.count = uint32(sl.elems())
	if len(p.bytes) <= inlineBytes {
		s.send(a, &h, p.bytes, nil, nil)
		return
	}
	s.send(a, &h, nil, sl, p)
}

// refuse tells a worker what was wrong with its request.
func (s *Server) refuse(a asker, why error) {
	s.cfg.Log.Warn("refused a request", "ps", s.index, "rank", a.rank, "op", a.h.op.String(), "error", why)
	h := header{op: opReply, status: statusRefused, config: s.config, seq: a.h.seq}
	s.send(a, &h, clipText(why.Error()), nil, nil)
}

// answerFailure tells a rank why the run ends.
func (s *Server) answerFailure(a asker) {
	h := header{op: opReply, status: statusFailed, config: s.config, seq: a.h.seq}
	s.send(a, &h, clipText(s.failure.Error()), nil, nil)
	s.told[a.rank] = true
}

func clipText(text string) []byte { return []byte(text[:min(len(text), 4096)]) }

// send starts an answer. inline is copied; p's bytes are sent from where they are.
func (s *Server) send(a asker, h *header, inline []byte, sl *slab, p *page) {
	var b []byte
	if n := len(s.pool); n > 0 {
		b, s.pool = s.pool[n-1], s.pool[:n-1]
	} else {
		b = aligned(frameBytes)
	}
	h.inline = uint32(len(inline))
	h.encode(b)
	copy(b[headerBytes:], inline)
	o := outgoing{rank: a.rank, frame: b, end: a.h.op == opDone || a.h.op == opServerDone}
	tag := s.tags.reply(a.h.seq)
	if a.h.op == opServerDone {
		tag = tagRequest
	}
	o.reqs[0] = mpi.Isend(s.comm, b[:headerBytes+len(inline)], a.rank, tag)
	if p != nil {
		p.readers++
		o.slab, o.page = sl, p
		o.reqs[1] = mpi.Isend(s.comm, p.bytes, a.rank, s.tags.replyPayload(a.h.seq))
	}
	if !s.left(&o) {
		s.out = append(s.out, o)
	}
}

// left reports whether an answer has gone out, and if so takes back its memory. It ignores errors: that the
// receiver is lost shows elsewhere.
func (s *Server) left(o *outgoing) bool {
	for i := range o.reqs {
		if o.reqs[i].Null() {
			continue
		}
		_, done, _ := o.reqs[i].Test()
		if !done {
			return false
		}
		o.reqs[i] = mpi.Request{}
	}
	s.pool = append(s.pool, o.frame)
	if o.page != nil {
		o.slab.unread(o.page)
	}
	return true
}

// settle checks whether the answers that read a block have left, before an update: while one is on its way, the
// update goes to a copy.
func (s *Server) settle(sl *slab) {
	if sl.page.readers > 0 {
		s.reap(0)
	}
}

// reap takes back the answers that have left, if more than above are on their way.
func (s *Server) reap(above int) {
	if len(s.out) <= above {
		return
	}
	keep := s.out[:0]
	for i := range s.out {
		if !s.left(&s.out[i]) {
			keep = append(keep, s.out[i])
		}
	}
	clear(s.out[len(keep):])
	s.out = keep
}

// flush waits until the answers about the end have left, and cancels everything else that is under way. All workers
// are done or lost, so any other answer, and any payload that has not come, belongs to a request that a worker gave
// up: nobody will take part in it. A system's MPI library, which takes no send back, then keeps the memory of an
// answer; flush returns that as mpi.ErrInFlight after failGrace.
func (s *Server) flush(ctx context.Context) error {
	grace, cancel := context.WithTimeout(ctx, failGrace)
	defer cancel()
	var kept error
	take := func(within context.Context, r *mpi.Request, what string) error {
		_, err := r.Wait(within)
		*r = mpi.Request{}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return fmt.Errorf("ps: %s: %w", what, err)
		case errors.Is(err, mpi.ErrInFlight):
			kept = fmt.Errorf("ps: %s: %w", what, err)
		}
		return nil
	}
	for i := range s.out {
		for k := range s.out[i].reqs {
			within := ctx // somebody waits for it
			if !s.out[i].end {
				s.out[i].reqs[k].Cancel()
				within = grace
			}
			if err := take(within, &s.out[i].reqs[k], "last answers"); err != nil {
				return err
			}
		}
	}
	s.out = s.out[:0]
	for _, r := range s.reqs {
		r.Cancel()
	}
	for i := range s.reqs {
		if err := take(grace, &s.reqs[i], "gradients that were given up"); err != nil {
			return err
		}
	}
	return kept
}

// abandon takes back what is still posted when the run has failed, so that no
// buffer is in use when Serve returns. It does not wait for peers.
func (s *Server) abandon() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, r := range s.reqs {
		r.Wait(ended)
	}
	for i := range s.out {
		for _, r := range s.out[i].reqs {
			r.Wait(ended)
		}
	}
	s.reqs, s.out = nil, nil
}
