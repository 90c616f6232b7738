package ps

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// failGrace is how long a server waits for workers to ask and be told why the
// run has failed before it revokes the communicator.
const failGrace = 2 * time.Second

// arriveDone records a worker's DONE.
func (s *Server) arriveDone(a asker) {
	status, epoch := int32(a.h.aux>>32), int32(a.h.aux)
	if s.board.arrive(a.worker, status) {
		s.cfg.Log.Info(fmt.Sprintf("ps %d received done %d of %d from rank %d (worker %d)",
			s.index, s.board.arrivals(), len(s.cfg.Cluster.Workers), a.rank, a.worker), "status", status, "epoch", epoch)
	}
	s.disown(a.rank)
	s.retire(a.worker)
	s.roomAgain() // its gradients took room, or those of others are next now
	if s.cfg.Forever {
		h := header{op: opReply, flags: flagForever, config: s.config, seq: a.h.seq}
		s.send(a, &h, nil, nil, nil)
		return
	}
	if status != 0 && (s.cfg.Mode == Sync || a.worker == 0 && !s.store.ready()) {
		s.told[a.rank] = true
		s.fail(&Error{Op: "serve", Role: s.cfg.Cluster.Role(a.rank), Rank: a.rank, Host: s.comm.Host(a.rank), Err: ErrFailed, Detail: fmt.Sprintf("it ended with status %d", status)})
		s.answerFailure(a)
		return
	}
	if s.index == 0 {
		s.atDone = append(s.atDone, a)
	} else {
		s.answer(a, nil, nil)
	}
	s.conclude()
}

// retire takes a worker out of everything that waits for all workers.
func (s *Server) retire(worker int) {
	s.openBarrier()
	if s.cfg.Mode == Sync && !s.cfg.Forever { // else it may come again
		s.withdraw(worker)
	}
}

// withdraw makes the updates of Sync mode stop waiting for a worker.
func (s *Server) withdraw(worker int) {
	var due []*slab
	seen := map[*gate]bool{}
	s.store.each(func(sl *slab) {
		if !seen[sl.gate] {
			seen[sl.gate] = true
			if sl.gate.retire(worker) {
				due = append(due, sl)
			}
		}
		if !s.cfg.backup() {
			sl.accumulate(s.store)
		}
	})
	for _, sl := range due {
		s.step(sl)
	}
}

// conclude ends the service when all workers are done or lost, unless the servers are to stay. ps 0 decides, once
// every other server has told it that it knows the same of all workers. ps 0 then tells everybody which ranks are
// lost, so that all end by the same barrier: that of all ranks, or that of those that are left.
func (s *Server) conclude() {
	if s.failure != nil || s.cfg.Forever || !s.board.complete() {
		return
	}
	if s.index > 0 {
		if !s.asking {
			s.asking = true
			h := header{op: opServerDone, config: s.config}
			s.send(asker{rank: s.cfg.Cluster.Servers[0], h: h}, &h, nil, nil, nil)
		}
		return
	}
	if s.servers < len(s.cfg.Cluster.Servers)-1 {
		return
	}
	for rank := range s.lost {
		s.absent = append(s.absent, rank)
	}
	slices.Sort(s.absent)
	lost := encodeAbsent(s.absent, s.lostRanks())
	for _, a := range s.atDone {
		h := header{op: opReply, config: s.config, seq: a.h.seq, aux: s.global}
		s.send(a, &h, lost, nil, nil)
	}
	s.atDone = nil
	s.ended = true
}

// decided is ps 0's word that the run is over, or why it fails.
func (s *Server) decided(rank int, h *header, payload []byte) {
	if rank != s.cfg.Cluster.Servers[0] || !s.asking {
		s.cfg.Log.Warn("dropped a reply", "ps", s.index, "rank", rank)
		return
	}
	if h.status != statusOK {
		why := ErrFailed
		if h.status == statusRefused {
			why = ErrRefused
		}
		s.fail(&Error{Op: "done", Role: s.cfg.Cluster.Role(rank), Rank: rank, Host: s.comm.Host(rank), Err: why, Detail: string(payload)})
		return
	}
	var lost []int
	lost, s.absent = decodeAbsent(payload)
	for _, r := range lost {
		if w := slices.Index(s.cfg.Cluster.Workers, r); w >= 0 {
			s.board.lose(w)
		}
	}
	s.ended = true
}

// losses learns which ranks are gone.
func (s *Server) losses(err error) {
	for _, rank := range s.comm.AckLost() {
		if s.lost[rank] {
			continue
		}
		s.lost[rank] = true
		gone := peerError("serve", s.comm, s.cfg.Cluster, rank, mpi.ErrPeerLost)
		var e *mpi.Error
		if errors.As(err, &e) && e.Peer == rank && e.Detail != "" {
			gone = &Error{Op: "serve", Role: s.cfg.Cluster.Role(rank), Rank: rank, Host: s.comm.Host(rank), Err: mpi.ErrPeerLost, Detail: e.Detail}
		}
		worker := slices.Index(s.cfg.Cluster.Workers, rank)
		if worker >= 0 && s.board.done[worker] {
			if s.cfg.Mode == Sync && s.cfg.Forever {
				s.withdraw(worker) // it does not come again
			}
			continue // it had finished
		}
		if worker < 0 || s.cfg.Mode == Sync || worker == 0 && !s.store.ready() {
			s.fail(gone)
			continue
		}
		s.board.lose(worker)
		s.cfg.Log.Warn(fmt.Sprintf("ps %d lost worker %d (rank %d on %s); the others go on", s.index, worker, rank, s.comm.Host(rank)))
		s.forget(rank)
		s.openBarrier()
	}
	s.roomAgain() // the gradients that a lost worker had announced take no room any more
	s.conclude()
}

// disown drops the open requests of a worker that is done and so has given them up: the payloads of gradients that
// it announced may never come, and the answers on their way to it may never be fetched.
func (s *Server) disown(rank int) {
	s.forget(rank)
	for i := 1; i < len(s.under); i++ {
		if o := &s.under[i]; o.rank == rank && !o.gone {
			o.unexpect()
			o.gone = true
			s.reqs[i].Cancel()
		}
	}
	for i := range s.out {
		if o := &s.out[i]; o.rank == rank && !o.end {
			for _, r := range o.reqs {
				r.Cancel()
			}
		}
	}
}

// forget drops the requests of a worker that does not wait for their answers any more.
func (s *Server) forget(rank int) {
	mine := func(a asker) bool { return a.rank == rank }
	for _, a := range s.atBarrier {
		if mine(a) {
			s.barrier.here[a.worker] = false
		}
	}
	s.atBarrier = slices.DeleteFunc(s.atBarrier, mine)
	s.store.each(func(sl *slab) {
		sl.waiting = slices.DeleteFunc(sl.waiting, mine)
		sl.held = slices.DeleteFunc(sl.held, func(o offer) bool {
			if o.rank == rank && o.buf != nil {
				s.store.release(o.buf)
			}
			return o.rank == rank
		})
	})
}

// fail ends the run for everybody. Each worker that waits, or asks within failGrace, is told why, and so is each
// server that waits for ps 0 or asks it.
func (s *Server) fail(err error) {
	if s.failure != nil {
		return
	}
	s.failure = err
	s.failBy = time.Now().Add(failGrace)
	s.cfg.Log.Error("the run has failed", "ps", s.index, "error", err)
	for _, a := range slices.Concat(s.atBarrier, s.atDone) {
		s.answerFailure(a)
	}
	s.atBarrier, s.atDone = nil, nil
	s.store.each(func(sl *slab) {
		for _, a := range sl.waiting {
			s.answerFailure(a)
		}
		for _, o := range sl.held {
			s.answerFailure(o.asker)
		}
		sl.waiting, sl.held = nil, nil
	})
	for _, o := range s.under[min(1, len(s.under)):] {
		s.answerFailure(o.asker)
	}
}

// allTold reports whether every worker that is left has been told of the failure and the answers have left, or
// failGrace is over.
func (s *Server) allTold() bool {
	if time.Now().After(s.failBy) {
		return true
	}
	for _, rank := range s.cfg.Cluster.Workers {
		if !s.told[rank] && !s.lost[rank] {
			return false
		}
	}
	s.reap(0)
	return len(s.out) == 0
}

// overdue fails the run when somebody waits for a worker that has been silent for longer than the deadline, and has
// waited for that long, too. Silence alone is not wrong: a server without a part of the tables hears nothing before
// the end.
func (s *Server) overdue(now time.Time) {
	if s.failure != nil || s.cfg.Forever {
		return
	}
	waits := map[string]time.Time{}
	defer func() { s.waits = waits }()
	late := func(what string, missing []int) {
		since, known := s.waits[what]
		if !known {
			since = now
		}
		waits[what] = since
		for _, w := range missing {
			silent := now.Sub(since)
			if s.seen[w].After(since) {
				silent = now.Sub(s.seen[w])
			}
			if silent > s.cfg.Deadline && s.failure == nil {
				rank := s.cfg.Cluster.Workers[w]
				s.fail(&Error{Op: what, Role: s.cfg.Cluster.Role(rank), Rank: rank, Host: s.comm.Host(rank), Err: ErrDeadline,
					Detail: fmt.Sprintf("silent for %v while others wait for it", silent.Round(time.Millisecond))})
			}
		}
	}
	waiting := s.waiting()
	if s.stuck(waiting, now) {
		clear(waiting)
	}
	others := func(workers []int) []int {
		return slices.DeleteFunc(workers, func(w int) bool { return waiting[w] })
	}
	if len(s.atDone) > 0 { // on ps 0 only: at other servers nobody waits for the end
		late("done", others(s.board.missing()))
	}
	if len(s.atBarrier) > 0 {
		late("barrier", others(s.barrier.missing(s.gone)))
	}
	if s.holding { // gradients wait for the room that announced ones take until they are here
		var sending []int
		for _, o := range s.under[1:] {
			sending = append(sending, o.worker)
		}
		late("gradient", sending)
	}
	s.store.each(func(sl *slab) {
		switch {
		case len(sl.waiting) == 0 && len(sl.held) == 0:
		case sl.version < 0:
			late("first values", others([]int{0}))
		case s.cfg.Mode == Sync:
			late(fmt.Sprintf("step %d", sl.gate.step), others(sl.gate.missing()))
		}
	})
}

// waiting returns the workers with a request that this server has not answered. However silent they are, they are
// the ones that wait: for this server, or for other workers.
func (s *Server) waiting() map[int]bool {
	waiting := map[int]bool{}
	for _, a := range s.atBarrier {
		waiting[a.worker] = true
	}
	s.store.each(func(sl *slab) {
		for _, a := range sl.waiting {
			waiting[a.worker] = true
		}
		for _, o := range sl.held {
			waiting[o.worker] = true
		}
	})
	return waiting
}

// stuck reports whether all workers that are left have been silent for the deadline with a request unanswered. Then
// they wait for each other, and none of them will ever say anything.
func (s *Server) stuck(waiting map[int]bool, now time.Time) bool {
	for w := range s.seen {
		if !s.gone(w) && (!waiting[w] || now.Sub(s.seen[w]) <= s.cfg.Deadline) {
			return false
		}
	}
	return true
}

// finalBarrier is the last thing all ranks do together, so that nobody closes while another still talks. absent,
// which ps 0 has told everybody, decides for all whether it is the barrier of all ranks or of those that are left.
// A loss after this decision does not fail the run.
func finalBarrier(ctx context.Context, cfg Config, absent []int) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.Deadline)
	defer cancel()
	c := cfg.Comm
	if len(absent) > 0 {
		left, err := c.Shrink(ctx)
		if err != nil {
			return &Error{Op: "final barrier", Err: err}
		}
		defer left.Free()
		c = left
	}
	if err := collective.Barrier(ctx, c); err != nil && !errors.Is(err, mpi.ErrPeerLost) {
		return &Error{Op: "final barrier", Err: err}
	}
	return nil
}

func (s *Server) lostRanks() []int {
	ranks := []int{}
	for w, rank := range s.cfg.Cluster.Workers {
		if s.board.lost[w] {
			ranks = append(ranks, rank)
		}
	}
	slices.Sort(ranks)
	return ranks
}

func (s *Server) summary() Summary {
	sum := Summary{Lost: s.lostRanks(), Updates: s.updates, GlobalStep: s.global,
		PeakUnappliedBytes: s.store.peakBytes}
	for w, status := range s.board.status {
		if status != 0 {
			sum.Failed = append(sum.Failed, s.cfg.Cluster.Workers[w])
		}
	}
	return sum
}

// The decision of ps 0 lists the ranks that are gone, each with a bit that is set if the rank had not finished its
// work.
func encodeAbsent(absent, lost []int) []byte {
	var b []byte
	for _, r := range absent[:min(len(absent), inlineBytes/4)] {
		v := uint32(r) << 1
		if slices.Contains(lost, r) {
			v |= 1
		}
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func decodeAbsent(b []byte) (lost, absent []int) {
	for ; len(b) >= 4; b = b[4:] {
		v := binary.LittleEndian.Uint32(b)
		absent = append(absent, int(v>>1))
		if v&1 != 0 {
			lost = append(lost, int(v>>1))
		}
	}
	return lost, absent
}
