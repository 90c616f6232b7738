package ps

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Worker pushes gradients to the servers and pulls values. It serves one goroutine at a time. After an exchange has
// failed, all calls return its error, except that Finish still works when the error was the end of a context.
type Worker struct {
	cfg    Config
	comm   *mpi.Comm
	tags   tags
	index  int
	config uint32
	shards *shards

	numbers *numbers        // of the requests of all Workers that were made on the communicator
	lanes   [][]*subrequest // requests open with each server, oldest first
	next    [][]int64       // of each block: the update its next gradient is for
	free    []*subrequest
	global  int64
	stopped bool // the servers say that everybody stops
	wish    bool // a server other than ps 0 wants to stop: passed on with the next push or step
	err     error
	gaveUp  bool // err is only the end of a context
}

// NewWorker makes the worker of this rank. It does not communicate.
func NewWorker(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Worker{cfg: cfg, comm: cfg.Comm, tags: tagsOf(cfg.Comm), config: cfg.fingerprint(), lanes: make([][]*subrequest, len(cfg.Cluster.Servers))}
	w.numbers = cfg.Comm.Attribute(&numbersKey, func() any { return &numbers{inUse: map[request]bool{}} }).(*numbers)
	w.index = slices.Index(cfg.Cluster.Workers, cfg.Comm.Rank())
	if w.index < 0 {
		return nil, configError("rank %d is %s, not a worker", cfg.Comm.Rank(), cfg.Cluster.Role(cfg.Comm.Rank()))
	}
	var err error
	if w.shards, err = cut(cfg.Tables, len(cfg.Cluster.Servers), cfg.BlockBytes); err != nil {
		return nil, err
	}
	for t, blocks := range w.shards.blocks {
		w.next = append(w.next, make([]int64, len(blocks)))
		if cfg.backup() {
			w.cfg.Window = max(w.cfg.Window, w.shards.mostOwned(t))
		}
	}
	return w, nil
}

// numbersKey names the attribute of a communicator that numbers the requests of all Workers made on it: a request
// that an earlier Worker gave up may still be answered when the next Worker asks.
var numbersKey mpi.Keyval

// numbers gives out the request numbers of a communicator. After the last one it begins again.
type numbers struct {
	next  uint32
	inUse map[request]bool // under way or, for good, given up: its answer may still come, or wait here
}

// request is a request to a server, by its number.
type request struct {
	server int
	seq    uint32
}

// number takes the next free number for a request to a server. It is in use until the request has been answered.
func (w *Worker) number(server int) (uint32, error) {
	for range w.tags {
		r := request{server, w.numbers.next}
		w.numbers.next = w.tags.next(r.seq)
		if !w.numbers.inUse[r] {
			w.numbers.inUse[r] = true
			return r.seq, nil
		}
	}
	return 0, peerError("request", w.comm, w.cfg.Cluster, w.cfg.Cluster.Servers[server],
		fmt.Errorf("%w: all %d numbers of requests are in use or were given up; a Window below %d helps", ErrConfig, w.tags, w.cfg.Window))
}

// Index is the worker's task index. Chief reports whether that is 0.
func (w *Worker) Index() int { return w.index }

// Chief reports whether this worker sets the first values, evaluates and
// writes files.
func (w *Worker) Chief() bool { return w.index == 0 }

// GlobalStep is the shared global step as last heard of.
func (w *Worker) GlobalStep() int64 { return w.global }

// Stopped reports whether the servers have said that everybody stops.
func (w *Worker) Stopped() bool { return w.stopped }

// Contribution says what goes with a pushed gradient.
type Contribution struct {
	// Weight is what the gradient is to be divided by: the number of samples it
	// is the sum of. 0 is 1. In Sync mode the sum of the gradients is divided by
	// the sum of the weights.
	Weight float64
	// CountStep adds 1 to the shared global step, which ps 0 keeps: for each push in Async mode, for each update in
	// Sync mode. If ps 0 has no part of the table, Sync mode counts the pushes of worker 0 instead of the updates:
	// also those that come too late for an update, and none after its Finish. Other workers may hear of such a
	// count only after their next push.
	CountStep bool
	// Stop asks that all workers stop after this step. ps 0 takes the wish up. Each worker hears of it with its
	// next push of a table of which ps 0 has a part (as it has of the first table of a Config), or with the next
	// step that it counts. In Sync mode ps 0 takes a wish up only at an update of its part: a run that pushes
	// nothing to ps 0 goes on.
	Stop bool
}

// Push sends a gradient of a whole table. The future is done when each server has taken its part: applied in Async
// mode, added to its step in Sync mode. grad belongs to the library until then. Push blocks while the window of a
// server is full; ctx ends that. Cost: one message per block and server, two above 16 KiB, and the answers. For
// tables with blocks that large, memory from mpi.Alloc is best. All errors are reported by Future.Wait.
func Push[F Float](ctx context.Context, w *Worker, table string, grad []F, c Contribution) *Future {
	return start(ctx, w, opPush, table, grad, nil, c, 0)
}

// Pull fetches a whole table into dst, which belongs to the library until the future is done. In Sync mode the
// values contain the steps that this worker has pushed for. In Async mode a Pull that is to contain the worker's
// own Push must be started after that Push is done. Pull waits for values that nobody has set yet.
func Pull[F Float](ctx context.Context, w *Worker, table string, dst []F) *Future {
	return start[F](ctx, w, opPull, table, nil, dst, Contribution{}, 0)
}

// PushPull sends a gradient and fetches the values after it, in Sync mode the
// values after the whole step. grad and dst must not overlap and belong to the
// library until the future is done.
func PushPull[F Float](ctx context.Context, w *Worker, table string, grad, dst []F, c Contribution) *Future {
	return start(ctx, w, opPushPull, table, grad, dst, c, 0)
}

// Fetch is Pull if slot is 0. For slots 1 to Rule.Slots() it fetches a vector of the optimizer, for a checkpoint,
// in the order of the rule (Momentum: m; Adam: m, v). dst belongs to the library until the future is done.
func Fetch[F Float](ctx context.Context, w *Worker, table string, slot int, dst []F) *Future {
	return start[F](ctx, w, opPull, table, nil, dst, Contribution{}, slot)
}

// Set replaces a table's values (slot 0) or an optimizer's vector by src as it is; version is how many updates src
// contains. The chief sets every table's values once before training; until then pulls wait. In Sync mode a block's
// values are refused once its next update has gradients. Vectors are set before the values. src belongs to the
// library until the future is done. Set blocks while the window of a server is full; ctx ends that. Errors are
// reported by Future.Wait. Cost: as Push.
func Set[F Float](ctx context.Context, w *Worker, table string, slot int, src []F, version int64) *Future {
	t, err := w.table(opSet, table, TypeOf[F](), slot)
	if err != nil {
		return failed(err)
	}
	if n := w.shards.tables[t].Len; len(src) != n || version < 0 {
		return failed(&Error{Op: "set", Err: ErrConfig, Detail: fmt.Sprintf("%d values at version %d; table %q has %d elements, and versions count from 0", len(src), version, table, n)})
	}
	f := &Future{w: w, op: opSet, version: -1}
	for i := range w.shards.blocks[t] {
		b := &w.shards.blocks[t][i]
		h := header{op: opSet, slot: uint32(slot), version: version}
		if f.err = w.issue(ctx, f, b.server, b, h, mpi.Bytes(src[b.begin:b.end]), nil); f.err != nil {
			return f
		}
		if slot == 0 {
			w.next[t][i] = version
		}
	}
	return f
}

// failed is a future that never began.
func failed(err error) *Future { return &Future{err: err} }

func start[F Float](ctx context.Context, w *Worker, o op, table string, src, dst []F, c Contribution, slot int) *Future {
	t, err := w.table(o, table, TypeOf[F](), slot)
	if err != nil {
		return failed(err)
	}
	n := w.shards.tables[t].Len
	if o != opPull && len(src) != n || o != opPush && len(dst) != n {
		return failed(&Error{Op: o.String(), Err: ErrConfig, Detail: fmt.Sprintf("table %q has %d elements; gradient %d, values %d", table, n, len(src), len(dst))})
	}
	if c.Weight == 0 {
		c.Weight = 1
	}
	if !divides(c.Weight) {
		return failed(&Error{Op: o.String(), Err: ErrConfig, Detail: fmt.Sprintf("weight %v; want a positive number", c.Weight)})
	}
	f := &Future{w: w, op: o, version: -1}
	var newest int64 // with backup workers: the update that all parts are for
	if w.cfg.backup() {
		newest = slices.Max(w.next[t])
		if o != opPush && slot == 0 {
			f.blocks, f.dst, f.versions = w.shards.blocks[t], mpi.Bytes(dst), make([]int64, len(w.next[t]))
		}
	}
	counted := !c.CountStep || o == opPull
	asked := o == opPull // ps 0 has been asked whether everybody stops: once, by pushes; for pulls see pullHeader
	for i := range w.shards.blocks[t] {
		b := &w.shards.blocks[t][i]
		version := w.next[t][i]
		if w.cfg.backup() { // parts for several updates would be counted for none of them
			version = newest
		}
		h := w.pullHeader(b, slot, version)
		var in, out []byte
		if o != opPull {
			h = header{op: o, version: version, weight: c.Weight}
			in = mpi.Bytes(src[b.begin:b.end])
			if w.cfg.Mode == Sync {
				w.next[t][i] = max(w.next[t][i], version+1) // corrected by the answer
			}
			if c.Stop || w.wish {
				h.flags |= flagStop
			}
			if !asked && b.server == 0 {
				asked = true
				h.flags |= flagStep
				if !counted {
					h.aux = 1
					counted = true
				}
			}
		}
		if o != opPush {
			out = mpi.Bytes(dst[b.begin:b.end])
		}
		if f.err = w.issue(ctx, f, b.server, b, h, in, out); f.err != nil {
			return f
		}
	}
	if !counted {
		// No block of this table lives on ps 0, which keeps the global step.
		steps := int64(1)
		if w.cfg.Mode == Sync && w.index > 0 {
			steps = 0
		}
		f.err = w.issue(ctx, f, 0, nil, w.stepHeader(steps, c), nil, nil)
	}
	return f
}

// pullHeader asks for a block's values or a vector of the optimizer, in Sync mode of at least the given version.
// With backup workers the run may be told to stop while this worker only pulls, so that no answer to a push tells
// it. So the answer of ps 0 for its first block of the table says that, too (flagStep).
func (w *Worker) pullHeader(b *block, slot int, version int64) header {
	h := header{op: opPull, slot: uint32(slot)}
	if w.cfg.Mode == Sync {
		h.version = version
	}
	if w.cfg.backup() && slot == 0 && b.server == 0 && b.index < len(w.lanes) {
		h.flags = flagStep
	}
	return h
}

// stepHeader adds to the shared global step, apart from a push.
func (w *Worker) stepHeader(n int64, c Contribution) header {
	h := header{op: opStep, aux: n}
	if c.Stop || w.wish {
		h.flags = flagStop
	}
	return h
}

// table checks what an operation names.
func (w *Worker) table(o op, name string, typ DType, slot int) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	t, err := w.shards.table(name)
	if err != nil {
		return 0, err
	}
	if have := w.shards.tables[t].Type; have != typ {
		return 0, &Error{Op: o.String(), Err: ErrConfig, Detail: fmt.Sprintf("table %q is of %v, the slice of %v", name, have, typ)}
	}
	if slots := w.cfg.Rule.Slots(); slot < 0 || slot > slots {
		return 0, &Error{Op: o.String(), Err: ErrConfig, Detail: fmt.Sprintf("slot %d; %s keeps %d beside the values", slot, w.cfg.Rule.Optimizer, slots)}
	}
	return t, nil
}

// AddStep adds n to the shared global step and returns the sum; with an n of 0 it asks for the step. It blocks for one round
// trip to ps 0.
func (w *Worker) AddStep(ctx context.Context, n int64) (int64, error) {
	a, err := w.ask(ctx, 0, w.stepHeader(n, Contribution{}))
	return a.Step, err
}

// Barrier returns when every worker has called it, or is done or lost. It returns the ranks of the workers that are
// lost, or done with a status other than 0 (see Finish). All workers get the same ranks, and the same GlobalStep
// after it.
func (w *Worker) Barrier(ctx context.Context) (lost []int, err error) {
	a, err := w.ask(ctx, 0, header{op: opBarrier})
	return a.lost, err
}

// Alive tells every server that this worker is there. A worker may send a server nothing for longer than
// Config.Deadline, and wait for no answer of that server, because it computes or because its requests go to other
// servers. It calls Alive meanwhile; else the server takes its silence for its end.
func (w *Worker) Alive(ctx context.Context) error {
	if w.err != nil {
		return w.err
	}
	f := &Future{w: w, op: opAlive, version: -1}
	for server := range w.lanes {
		if f.err == nil {
			f.err = w.issue(ctx, f, server, nil, header{op: opAlive}, nil, nil)
		}
	}
	_, err := f.Wait(ctx)
	return err
}

// ask sends a request without a table and waits for its answer.
func (w *Worker) ask(ctx context.Context, server int, h header) (Answer, error) {
	if w.err != nil {
		return Answer{}, w.err
	}
	f := &Future{w: w, op: h.op, version: -1}
	f.err = w.issue(ctx, f, server, nil, h, nil, nil)
	return f.Wait(ctx)
}

// Finish says DONE to every server, waits until all workers have, and passes the final barrier. status is 0 for
// success; epoch is what the servers log. It returns the ranks of workers that were lost on the way. After it the
// communicator carries no message of this package any more, and every operation of the worker returns
// mpi.ErrClosed. Only of servers that stay (Config.Forever) may the worker ask more.
//
// A worker that fails by itself also calls Finish, with a status other than 0: in
// Sync mode that ends the run for all, unless servers stay, in Async mode the others go on.
func (w *Worker) Finish(ctx context.Context, status, epoch int) (lost []int, err error) {
	if w.err != nil && !w.gaveUp {
		return nil, w.err
	}
	for _, lane := range w.lanes {
		for _, p := range slices.Clone(lane) {
			p.finish(ctx) // its future keeps the error
		}
	}
	if w.err != nil && !w.gaveUp {
		return nil, w.err
	}
	w.err = nil
	f := &Future{w: w, op: opDone, version: -1}
	for server := range w.lanes {
		h := header{op: opDone, aux: int64(int32(status))<<32 | int64(uint32(int32(epoch)))}
		if err := w.issue(ctx, f, server, nil, h, nil, nil); err != nil {
			return nil, err
		}
	}
	a, err := f.Wait(ctx)
	if err != nil {
		return nil, err
	}
	if a.forever { // the worker may come again
		return nil, nil
	}
	w.err, w.gaveUp = errFinished, false
	return a.lost, finalBarrier(ctx, w.cfg, a.absent)
}

// errFinished is what a worker's operations return after Finish: the servers listen to it no more.
var errFinished = &Error{Op: "worker", Err: mpi.ErrClosed, Detail: "it has said DONE to the servers; nothing follows Finish"}

// broke makes an error of an exchange with a server name the rank concerned, and keeps it as the worker's error
// from now on.
func (w *Worker) broke(ctx context.Context, o op, server int, err error) error {
	rank := w.cfg.Cluster.Servers[server]
	var e *Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, mpi.ErrRevoked):
		err = w.cfg.Explain(ctx, o.String(), err)
	default:
		err = peerError(o.String(), w.comm, w.cfg.Cluster, rank, err)
	}
	if w.err == nil {
		w.err, w.gaveUp = err, ctx.Err() != nil
	}
	return err
}
