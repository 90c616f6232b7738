package ps

// What a server does with requests for values, and for a barrier.

import (
	"fmt"
	"slices"
	"time"
)

// pull answers with a block's values or a vector of the optimizer, now or when
// the version that the worker wants is there.
func (s *Server) pull(a asker) {
	sl, err := s.store.find(&a.h)
	if err == nil && (int(a.h.count) != sl.elems() || int(a.h.slot) > len(sl.slots)) {
		err = fmt.Errorf("%d elements of slot %d of block %d of table %q; it has %d elements and %d slots", a.h.count, a.h.slot, sl.index, s.cfg.Tables[sl.table].Name, sl.elems(), len(sl.slots))
	}
	if err != nil {
		s.refuse(a, err)
		return
	}
	if sl.version < 0 || sl.version < a.h.version {
		sl.waiting = append(sl.waiting, a)
		return
	}
	s.answerPull(sl, a)
}

func (s *Server) answerPull(sl *slab, a asker) {
	if a.h.slot == 0 {
		s.answer(a, sl, sl.page)
		return
	}
	// Vectors of the optimizer are pulled for checkpoints only: a copy will do.
	p := sl.free()
	p.readers++ // this function reads it, too: the answer may leave at once
	copy(p.bytes, sl.slots[a.h.slot-1])
	s.answer(a, sl, p)
	sl.unread(p)
}

// serveWaiting answers the requests whose version has come.
func (s *Server) serveWaiting(sl *slab) {
	if len(sl.waiting) == 0 {
		return
	}
	now := time.Now()
	keep := sl.waiting[:0]
	for _, a := range sl.waiting {
		want := a.h.version
		if a.h.op == opPushPull {
			want++
		}
		if sl.version < 0 || sl.version < want {
			keep = append(keep, a)
			continue
		}
		s.seen[a.worker] = now // until now it waited for others
		s.answerPull(sl, a)
	}
	clear(sl.waiting[len(keep):])
	sl.waiting = keep
}

// arriveBarrier counts a worker in at the barrier.
func (s *Server) arriveBarrier(a asker) {
	s.barrier.here[a.worker] = true
	s.atBarrier = append(s.atBarrier, a)
	s.openBarrier()
}

func (s *Server) gone(worker int) bool { return s.board.done[worker] || s.board.lost[worker] }

func (s *Server) openBarrier() {
	if len(s.atBarrier) == 0 || !s.barrier.complete(s.gone) {
		return
	}
	var without []int // neither here nor done with its work
	for w, rank := range s.cfg.Cluster.Workers {
		if s.board.lost[w] || s.board.failed(w) {
			without = append(without, rank)
		}
	}
	slices.Sort(without)
	now := time.Now()
	for _, a := range s.atBarrier {
		s.seen[a.worker] = now // until now it waited for others
		h := header{op: opReply, flags: flagStep, config: s.config, seq: a.h.seq, aux: s.global}
		s.send(a, &h, encodeAbsent(without, without), nil, nil)
	}
	s.atBarrier = s.atBarrier[:0]
	clear(s.barrier.here)
}
