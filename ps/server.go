package ps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Server holds its part of the tables and serves the workers. One goroutine,
// the one in Serve, owns all of its state.
type Server struct {
	cfg    Config
	comm   *mpi.Comm
	tags   tags
	index  int
	config uint32
	store  *store

	frame []byte
	reqs  []mpi.Request // [0] the next frame, then the payloads under way
	under []offer       // the offer whose payload reqs[i] receives, for i > 0
	out   []outgoing
	pool  [][]byte // frames to answer with

	board     *doneBoard
	barrier   *roll
	atBarrier []asker
	atDone    []asker              // on ps 0: workers and other servers that wait for the end
	servers   int                  // on ps 0: servers that have heard from all workers
	asking    bool                 // on the others: ps 0 has been told
	lost      map[int]bool         // ranks known to be gone
	absent    []int                // decided at the end: ranks that the final barrier does without
	seen      []time.Time          // last sign of life of each worker, or end of its waiting for others
	waits     map[string]time.Time // what is waited for, and since when
	global    int64
	updates   int64
	interrupt atomic.Bool // a wish to stop, from Interrupt or with a gradient that was dropped
	stopping  bool        // a wish to stop has been taken up: every answer says so
	holding   bool        // some slab may hold gradients back

	failure error
	failBy  time.Time
	told    map[int]bool
	ended   bool
}

// asker is a rank that waits for an answer.
type asker struct {
	rank, worker int
	h            header
	dropped      bool
}

// offer is a gradient (or values to set) that was announced.
type offer struct {
	asker
	slab   *slab
	buf    []byte // where it is or will be
	inline bool   // buf holds it already
	waste  bool   // not for this step: received only to be thrown away
	beyond bool   // it exceeds the bound on unapplied bytes
	gone   bool   // its worker is done and has given it up
}

// outgoing is an answer on its way.
type outgoing struct {
	rank  int
	frame []byte
	reqs  [2]mpi.Request
	slab  *slab
	page  *page
	end   bool // it answers a rank that waits for the end, and that gives no request up
}

// Summary is what a server knows at the end.
type Summary struct {
	Lost               []int // ranks of the workers that were lost before they were done
	Failed             []int // ranks of the workers that were done with a status other than 0
	Updates            int64 // gradients or sums of gradients applied, counted for each block
	GlobalStep         int64 // on ps 0
	PeakUnappliedBytes int   // of gradients: the most that were held at one time
}

// NewServer makes the server of this rank. It does not communicate.
func NewServer(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, comm: cfg.Comm, tags: tagsOf(cfg.Comm), config: cfg.fingerprint(), frame: aligned(frameBytes),
		lost: map[int]bool{}, told: map[int]bool{}, seen: make([]time.Time, len(cfg.Cluster.Workers))}
	s.index = slices.Index(cfg.Cluster.Servers, cfg.Comm.Rank())
	if s.index < 0 {
		return nil, configError("rank %d is %s, not a ps", cfg.Comm.Rank(), cfg.Cluster.Role(cfg.Comm.Rank()))
	}
	shards, err := cut(cfg.Tables, len(cfg.Cluster.Servers), cfg.BlockBytes)
	if err != nil {
		return nil, err
	}
	if s.store, err = newStore(cfg, shards, s.index); err != nil {
		return nil, err
	}
	s.board = newDoneBoard(len(cfg.Cluster.Workers))
	s.barrier = newRoll(len(cfg.Cluster.Workers))
	return s, nil
}

// Interrupt asks for an early end: the workers are told to stop after the next step, as with Contribution.Stop. ps
// 0 can always tell them, another server only if it has a part of a table. Any goroutine may call Interrupt.
func (s *Server) Interrupt() { s.interrupt.Store(true) }

// Serve answers the workers until all of them are done or lost and the final barrier is over. It returns an error
// when the run failed: in Sync mode when a worker is lost or fails, in both modes when a server is lost, when
// worker 0 is lost or fails before it has set all values, or when a worker that others wait for stays silent beyond
// the deadline. With Forever it serves until ctx ends, which is then no error.
func (s *Server) Serve(ctx context.Context) (Summary, error) {
	now := time.Now()
	for w := range s.seen {
		s.seen[w] = now
	}
	err := s.loop(ctx)
	sum := s.summary()
	if err != nil {
		s.abandon()
		if s.cfg.Forever && ctx.Err() != nil && s.failure == nil {
			return sum, nil
		}
		return sum, err
	}
	s.cfg.Log.Info("all workers done", "ps", s.index, "lost", sum.Lost, "updates", sum.Updates, "peak unapplied bytes", sum.PeakUnappliedBytes)
	switch err := s.flush(ctx); {
	case err == nil:
		s.store.alloc.free()
	case ctx.Err() == nil && errors.Is(err, mpi.ErrInFlight): // its memory stays until the process ends
		s.cfg.Log.Warn("what a worker gave up stays with the MPI library", "ps", s.index, "why", err)
	default:
		return sum, err
	}
	return sum, finalBarrier(ctx, s.cfg, s.absent)
}

// loop receives frames and payloads until the server has ended.
func (s *Server) loop(ctx context.Context) error {
	s.reqs = append(s.reqs[:0], mpi.Irecv(s.comm, s.frame, mpi.AnySource, tagRequest))
	s.under = append(s.under[:0], offer{})
	interval := min(max(s.cfg.Deadline/8, time.Millisecond), time.Second)
	tick := newTicker(ctx, interval)
	defer func() { tick.stop() }()
	for !s.ended {
		if tick.ctx.Err() != nil { // not only when nothing came: requests may come without a pause
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			tick.stop()
			tick = newTicker(ctx, interval)
			s.overdue(time.Now())
		}
		i, status, err := mpi.WaitAny(tick.ctx, s.reqs)
		switch {
		case i == 0:
			if err == nil {
				s.receive(status, s.frame[:min(status.Bytes, len(s.frame))])
			} else if err := s.broken(ctx, err); err != nil {
				return err
			}
			s.reqs[0] = mpi.Irecv(s.comm, s.frame, mpi.AnySource, tagRequest)
		case i > 0:
			o := s.under[i]
			last := len(s.reqs) - 1
			s.reqs[i], s.under[i] = s.reqs[last], s.under[last]
			s.reqs, s.under = s.reqs[:last], s.under[:last]
			if err := s.arrived(ctx, o, status, err); err != nil {
				return err
			}
		}
		s.reap(reapAbove)
		if s.failure != nil && s.allTold() {
			s.comm.Revoke()
			return s.failure
		}
	}
	return nil
}

// broken deals with an error of a receive. An error that it returns ends the loop.
func (s *Server) broken(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, mpi.ErrPeerLost):
		s.losses(err)
		return nil
	case errors.Is(err, mpi.ErrTruncated):
		s.cfg.Log.Warn("dropped a frame that is too long", "ps", s.index, "error", err)
		return nil
	case errors.Is(err, mpi.ErrRevoked):
		if s.failure != nil {
			return s.failure
		}
		return s.cfg.Explain(ctx, "serve", err)
	}
	return &Error{Op: "serve", Err: err}
}

// arrived deals with the end of a payload's receive.
func (s *Server) arrived(ctx context.Context, o offer, status mpi.Status, err error) error {
	if o.beyond {
		s.store.beyond = false
	}
	wrong := err == nil && status.Bytes != len(o.buf)
	if wrong || err != nil || o.gone {
		if !o.gone {
			o.unexpect()
		}
		s.store.release(o.buf)
	}
	switch {
	case o.gone && (err == nil || errors.Is(err, mpi.ErrCancelled)):
		err = nil
	case wrong:
		s.refuse(o.asker, fmt.Errorf("payload of %d bytes, the header says %d", status.Bytes, len(o.buf)))
	case errors.Is(err, mpi.ErrPeerLost):
		s.losses(err)
		err = nil
	case err != nil:
		err = s.broken(ctx, err)
	default:
		s.land(o)
	}
	s.roomAgain()
	return err
}

// unexpect tells the gate that the payload of an offer which it took will not come.
func (o *offer) unexpect() {
	if !o.waste && o.h.op != opSet {
		o.slab.gate.forget(o.worker, o.h.version)
	}
}

// receive takes one frame apart and acts on it.
func (s *Server) receive(status mpi.Status, b []byte) {
	var h header
	payload, err := h.decode(b)
	rank := status.Source
	a := asker{rank: rank, worker: slices.Index(s.cfg.Cluster.Workers, rank), h: h}
	switch {
	case err == nil:
	case a.worker >= 0 && h.answerable(s.tags): // it waits for an answer
		s.refuse(a, err)
		return
	default:
		s.cfg.Log.Warn("dropped a frame", "ps", s.index, "rank", rank, "error", err)
		return
	}
	if h.op == opReply { // of ps 0 to this server, sent to the tag of requests
		s.decided(rank, &h, payload)
		return
	}
	if h.op != opServerDone && a.worker < 0 {
		s.refuse(a, fmt.Errorf("rank %d is no worker", rank))
		return
	}
	if a.worker >= 0 {
		s.seen[a.worker] = time.Now()
		if s.cfg.Forever {
			s.board.done[a.worker] = false // it may come again
		}
	}
	if s.failure != nil {
		s.answerFailure(a)
		return
	}
	if h.config != s.config {
		s.refuse(a, fmt.Errorf("%s is configured differently from ps %d (fingerprint %08x, here %08x): Cluster, Tables, Mode, Rule, Aggregate, StaleDiscount, BlockBytes or Forever differ",
			s.cfg.Cluster.Role(rank), s.index, h.config, s.config))
		return
	}
	if a.worker >= 0 && s.board.done[a.worker] && h.op != opDone {
		s.refuse(a, fmt.Errorf("%s is done; nothing follows Finish", s.cfg.Cluster.Role(rank)))
		return
	}
	switch h.op {
	case opPush, opPushPull, opSet:
		s.announced(a, payload)
	case opPull:
		s.pull(a)
	case opStep:
		if s.cfg.Mode == Async || len(s.cfg.Tables) == 0 {
			s.count(h.flags, h.aux)
		} else { // all workers are to stop after the same step: a wish waits for the next update
			s.global += h.aux
		}
		s.answer(a, nil, nil)
	case opAlive: // noted above
		s.answer(a, nil, nil)
	case opBarrier:
		s.arriveBarrier(a)
	case opDone:
		s.arriveDone(a)
	case opServerDone:
		s.servers++
		s.atDone = append(s.atDone, a)
		s.conclude()
	}
}

// ticker is a context that ends after a while, for waits that must look at the
// clock now and then.
type ticker struct {
	ctx  context.Context
	stop context.CancelFunc
}

func newTicker(parent context.Context, d time.Duration) ticker {
	ctx, stop := context.WithTimeout(parent, d)
	return ticker{ctx, stop}
}
