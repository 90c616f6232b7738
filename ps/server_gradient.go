package ps

// What a server does with a gradient: announced → consider → accept → land → step.

import (
	"fmt"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// announced deals with a gradient, or values to be set, whose header is here.
func (s *Server) announced(a asker, payload []byte) {
	sl, err := s.store.find(&a.h)
	switch {
	case err != nil:
	case int(a.h.count) != sl.elems():
		err = fmt.Errorf("%d elements for block %d of table %q, which has %d", a.h.count, sl.index, s.cfg.Tables[sl.table].Name, sl.elems())
	case len(payload) != 0 && len(payload) != sl.bytes():
		err = fmt.Errorf("%d payload bytes for a block of %d", len(payload), sl.bytes())
	case a.h.op == opSet && (int(a.h.slot) > len(sl.slots) || a.h.version < 0):
		err = fmt.Errorf("slot %d, version %d; %s keeps %d slots beside the values, versions count from 0", a.h.slot, a.h.version, sl.rule.Optimizer, len(sl.slots))
	case a.h.op != opSet && a.h.slot != 0:
		err = fmt.Errorf("a gradient for slot %d; it is for the values, which are slot 0", a.h.slot)
	case a.h.op != opSet && sl.version < 0:
		err = fmt.Errorf("a gradient for table %q, whose values have not been set", s.cfg.Tables[sl.table].Name)
	}
	if err != nil {
		s.refuse(a, err)
		return
	}
	s.consider(offer{asker: a, slab: sl, inline: len(payload) > 0}, payload)
}

// consider asks the store for room and the gate what becomes of a gradient.
func (s *Server) consider(o offer, payload []byte) {
	sl := o.slab
	gradient := o.h.op != opSet
	// Without room the payload stays at the worker; a small one has come with its header.
	var ok, beyond bool
	if !o.inline {
		next := !gradient || s.cfg.Mode == Sync && !s.cfg.backup() && o.h.version == sl.gate.step && sl.gate.inOrder(o.worker)
		if ok, beyond = s.store.room(sl.bytes(), next); !ok {
			s.hold(sl, o)
			return
		}
	}
	verdict := take
	switch {
	case gradient && s.given(sl, o):
		verdict = duplicate
	case gradient:
		verdict = sl.gate.offer(o.worker, o.h.version)
	}
	if beyond && verdict == take {
		o.beyond, s.store.beyond = true, true
	}
	switch verdict {
	case take:
		s.accept(o, payload)
	case stale:
		o.waste = true
		s.accept(o, payload)
	case later:
		if o.inline && o.buf == nil {
			o.buf = s.store.stage(sl.bytes())
			copy(o.buf, payload)
		}
		s.hold(sl, o)
	case duplicate:
		if s.cfg.Forever { // the worker has come again: the open step has its gradient
			o.waste = true
			s.accept(o, payload)
			return
		}
		if o.buf != nil {
			s.store.release(o.buf)
		}
		s.refuse(o.asker, fmt.Errorf("a second gradient for step %d of block %d", o.h.version, sl.index))
	}
}

// given reports whether the open step already has this worker's gradient of the block, or is receiving it. The gate
// does not know: with backup workers it counts the parts of several blocks, not which they are.
func (s *Server) given(sl *slab, o offer) bool {
	if !s.cfg.backup() || o.h.version != sl.gate.step {
		return false
	}
	return sl.staged[o.worker] != nil || slices.ContainsFunc(s.under, func(u offer) bool {
		return u.slab == sl && u.worker == o.worker && u.h.op != opSet && u.h.version == o.h.version && !u.waste && !u.gone
	})
}

// hold keeps an offer until there is room, or its step is open.
func (s *Server) hold(sl *slab, o offer) {
	sl.held = append(sl.held, o)
	s.holding = true
}

// accept receives the payload, or copies it when it came with its header.
func (s *Server) accept(o offer, payload []byte) {
	if o.inline {
		if o.buf == nil {
			o.buf = s.store.stage(o.slab.bytes())
			copy(o.buf, payload)
		}
		s.land(o)
		return
	}
	o.buf = s.store.stage(o.slab.bytes())
	s.reqs = append(s.reqs, mpi.Irecv(s.comm, o.buf, o.rank, s.tags.requestPayload(o.h.seq)))
	s.under = append(s.under, o)
}

// land is reached when a gradient is in memory.
func (s *Server) land(o offer) {
	sl := o.slab
	if s.failure != nil { // and the sender has been told
		s.store.release(o.buf)
		return
	}
	if o.h.op == opSet {
		if o.h.slot == 0 && sl.gate.begun() { // they were computed from the present values
			s.store.release(o.buf)
			s.refuse(o.asker, fmt.Errorf("values at version %d for block %d of table %q, whose step %d has gradients already; values are set before training",
				o.h.version, sl.index, s.cfg.Tables[sl.table].Name, sl.gate.step))
			return
		}
		s.settle(sl)
		sl.set(int(o.h.slot), o.buf, o.h.version)
		s.store.release(o.buf)
		s.answer(o.asker, nil, nil)
		s.serveWaiting(sl)
		return
	}
	var due bool
	if !o.waste {
		var v verdict
		v, due = sl.gate.arrive(o.worker, o.h.version)
		o.waste = v == stale
	}
	if o.waste {
		if o.h.flags&flagStop != 0 { // the wish to stop stands: it is taken up at the next update
			s.interrupt.Store(true)
		}
		s.store.release(o.buf)
		o.dropped = true
		if o.h.op == opPushPull && o.h.version == sl.version { // the step is still open: the worker gets the values after it
			sl.waiting = append(sl.waiting, o.asker)
			return
		}
		s.acknowledge(sl, o.asker)
		return
	}
	if s.cfg.Mode == Async {
		weight := o.h.weight
		if stale := sl.version - o.h.version; s.cfg.StaleDiscount && stale > 1 {
			weight *= float64(stale)
		}
		s.settle(sl)
		sl.update(o.buf, weight)
		s.store.release(o.buf)
		s.updates++
		s.count(o.h.flags, o.h.aux)
		s.acknowledge(sl, o.asker)
		s.serveWaiting(sl)
		return
	}
	sl.staged[o.worker], sl.weights[o.worker] = o.buf, o.h.weight
	sl.flags |= o.h.flags
	sl.steps = max(sl.steps, o.h.aux)
	if !s.cfg.backup() {
		sl.accumulate(s.store)
	}
	if o.h.op == opPush {
		s.answer(o.asker, sl, nil)
	} else {
		sl.waiting = append(sl.waiting, o.asker)
	}
	if due {
		s.step(sl)
	}
}

// acknowledge answers a gradient that is dealt with.
func (s *Server) acknowledge(sl *slab, a asker) {
	if a.h.op == opPushPull {
		s.answer(a, sl, sl.page)
		return
	}
	s.answer(a, sl, nil)
}

// step makes the update of a gate that is due, on all the blocks it guards.
func (s *Server) step(of *slab) {
	g := of.gate
	var together []*slab
	for _, sl := range s.store.blocks[of.table] {
		if sl != nil && sl.gate == g {
			together = append(together, sl)
		}
	}
	var flags uint8
	var steps int64
	for _, sl := range together {
		for i := range sl.waiting {
			a := &sl.waiting[i]
			if a.h.op == opPushPull && !g.member(a.worker) {
				a.dropped = true
			}
		}
		s.settle(sl)
		f, n := sl.applyStep(s.store)
		flags, steps = flags|f, steps+n
		s.updates++
	}
	g.advance()
	s.count(flags, steps)
	for _, sl := range together {
		s.serveWaiting(sl)
	}
	s.roomAgain()
}

// count advances the global step and takes up a wish to stop. In Sync mode with tables it runs only at an update,
// so that all answers of one step say the same.
func (s *Server) count(flags uint8, steps int64) {
	s.global += steps
	if (flags&flagStop != 0 || s.interrupt.Load()) && !s.stopping {
		s.stopping = true
		s.cfg.Log.Info("told to stop", "ps", s.index, "global step", s.global)
	}
}

// roomAgain considers all held offers again.
func (s *Server) roomAgain() {
	if !s.holding {
		return
	}
	s.holding = false
	now := time.Now()
	s.store.each(func(sl *slab) {
		held := sl.held
		sl.held = nil
		for _, o := range held {
			s.seen[o.worker] = now // until now it waited for this server
			s.consider(o, nil)
		}
	})
}
