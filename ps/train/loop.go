package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

// run trains to the end and says goodbye, also when it fails by itself.
func (w *worker[F]) run(ctx context.Context) (*Result, error) {
	r := w.cfg.result(w.data.Name, w.plan)
	err := w.train(ctx, r)
	w.hooks.end(ctx, w.session(), err)
	if err == nil {
		err = w.write(ctx, r)
	}
	if err != nil {
		w.sayFailed(ctx, err)
		return nil, err
	}
	lost, err := w.x.finish(ctx, 0, int(w.global/w.plan.perEpoch))
	if err != nil {
		return nil, err
	}
	r.Lost = append(r.Lost[:0], lost...)
	if w.chief != nil {
		if err := w.chief.finish(r, w.cfg.beforeOutput); err != nil { // all have said goodbye to this worker: it has no successor
			return nil, err
		}
	}
	// A run that failed keeps its memory: a peer may still be reading it.
	if err := w.free(); err != nil {
		return nil, err
	}
	return r, nil
}

// sayFailed tells the others of a failure of this worker itself. The servers know of all other failures.
func (w *worker[F]) sayFailed(ctx context.Context, err error) {
	if errors.Is(err, ps.ErrFailed) || errors.Is(err, mpi.ErrPeerLost) || errors.Is(err, mpi.ErrRevoked) {
		return
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	w.x.finish(short, 1, 0)
}

// farewell is how long a worker that failed waits for the others to hear of it.
const farewell = 5 * time.Second

func (w *worker[F]) session() Session {
	return Session{Worker: w.index, Chief: w.index == 0, Step: w.global}
}

// train makes this worker's steps.
func (w *worker[F]) train(ctx context.Context, r *Result) error {
	if err := w.hooks.begin(ctx, w.session()); err != nil {
		return err
	}
	if err := w.start(ctx, r); err != nil {
		return err
	}
	if err := w.hooks.afterCreate(ctx, w.session()); err != nil {
		return err
	}
	w.joined = w.global
	w.begun = time.Now()
	if w.index == 0 {
		var err error
		if w.chief, err = newChief(ctx, w); err != nil {
			return err
		}
	}
	asked := false
	for !w.plan.stop.Reached(w.joined, w.global) && !w.x.stopped() {
		w.note("the hooks before a step")
		if err := w.hooks.beforeStep(ctx, w.session()); err != nil {
			return err
		}
		asked = asked || closed(w.cfg.Interrupt)
		if err := w.step(ctx, asked); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
	now := w.global
	lost, last, err := w.x.barrier(ctx)
	if err != nil {
		return err
	}
	if w.plan.stop.LastStep > 0 { // the others may have made the last steps, also after this worker was told to stop
		now = last
	}
	r.Interrupted = w.x.stopped() && !w.plan.stop.Reached(w.joined, now)
	r.Seconds, r.Resumed = time.Since(w.begun).Seconds(), w.resumed
	r.Lost = append(r.Lost[:0], lost...)
	return w.conclude(ctx, r)
}

// write writes what the run leaves behind, before any worker ends: one that has ended does not wait for long. In
// Async mode, where the run goes on without lost workers, all wait until the writer is done: if the writer is lost
// meanwhile, the next worker evaluates the final parameters and writes.
func (w *worker[F]) write(ctx context.Context, r *Result) error {
	for {
		writer := w.writer(r.Lost) // not a successor that knows of a loss which the barrier has not counted yet
		if w.chief != nil && (w.cfg.together() || writer == w.cfg.Cluster.Workers[w.index]) {
			err := w.chief.write(ctx, r, w)
			if err == nil && !w.cfg.together() { // the others end well without this worker
				err = w.chief.finish(r, func() error { return w.mayWrite(ctx) })
			}
			if err != nil {
				return err
			}
		}
		if w.cfg.together() {
			return nil
		}
		lost, _, err := w.x.barrier(ctx)
		if err != nil {
			return err
		}
		r.Lost = append(r.Lost[:0], lost...)
		if !slices.Contains(lost, writer) {
			return nil
		}
		if err := w.conclude(ctx, r); err != nil {
			return err
		}
		if w.chief != nil {
			if err := w.chief.replace(ctx, r, w); err != nil {
				return err
			}
		}
	}
}

// mayWrite returns an error if this worker must not write, or not any more: another run has taken the place of this
// one, or the servers are out of reach. Then they may have counted this worker as lost, and its successor writes.
func (w *worker[F]) mayWrite(ctx context.Context) error {
	if err := w.cfg.beforeOutput(); err != nil {
		return err
	}
	return w.x.alive(ctx)
}

// writer is the rank of the first worker that is not lost.
func (w *worker[F]) writer(lost []int) int {
	for _, rank := range w.cfg.Cluster.Workers {
		if !slices.Contains(lost, rank) {
			return rank
		}
	}
	return mpi.ProcNull
}

// firstLeft reports whether all workers before this one are among the lost.
func (w *worker[F]) firstLeft(lost []int) bool {
	for _, rank := range w.cfg.Cluster.Workers[:w.index] {
		if !slices.Contains(lost, rank) {
			return false
		}
	}
	return true
}

// takeOver makes this worker the chief in the place of one that was lost or has failed.
func (w *worker[F]) takeOver(ctx context.Context) (err error) {
	w.cfg.Log.Warn("the chief was lost or has failed; this worker takes its place", "worker", w.index)
	for range w.plan.rule.Slots() {
		w.slots = append(w.slots, make([]F, len(w.params)))
	}
	w.chief, err = newChief(ctx, w)
	return err
}

// conclude evaluates the final parameters. That is done by the chief or, if the chief was lost or failed by itself,
// by the first worker that is left.
func (w *worker[F]) conclude(ctx context.Context, r *Result) error {
	r.Steps = w.global
	if w.chief == nil && !w.firstLeft(r.Lost) {
		return nil
	}
	if w.chief == nil {
		if err := w.takeOver(ctx); err != nil {
			return err
		}
	}
	if err := w.fetch(ctx); err != nil {
		return err
	}
	r.Steps = w.global
	// Workers that joined later have steps to make when this worker has made its own; they may have been told to
	// stop.
	if n := w.plan.stop.NumSteps; n > 0 && !w.cfg.together() && len(w.cfg.Cluster.Workers) > 1 && w.global-w.joined > n {
		r.Interrupted = w.x.stopped()
	}
	if w.cfg.Checkpoint != "" && r.Interrupted {
		if err := w.save(); err != nil {
			return err
		}
	}
	w.note("the last evaluation")
	if err := w.chief.conclude(ctx, r, w); err != nil {
		return err
	}
	if err := w.converges(r.TrainLoss); err != nil { // by the last update
		return err
	}
	if r.Seconds > 0 {
		samples := float64(w.global-w.joined) / float64(w.plan.perEpoch) * float64(w.data.Train.Rows())
		r.SamplesPerSecond = samples / r.Seconds
	}
	return nil
}

// fetch gets the state from the exchange as it is. If this worker is a backup worker, the others may have made
// steps without it.
func (w *worker[F]) fetch(ctx context.Context) error {
	step, err := w.x.state(ctx, w.params, w.slots)
	if err != nil {
		return err
	}
	w.global = step
	if w.cfg.together() {
		w.position = step
	}
	return nil
}

// start agrees on the parameters to begin with.
func (w *worker[F]) start(ctx context.Context, r *Result) error {
	var step int64
	if w.index == 0 {
		resume := func() (err error) {
			step, err = w.resume()
			return err
		}
		claim := w.cfg.Claim
		if claim == nil {
			claim = func(resume func() error) error { return resume() }
		}
		if err := claim(resume); err != nil {
			return err
		}
	}
	var err error
	if w.global, w.resumed, err = w.x.begin(ctx, w.params, w.slots, step); err != nil {
		return err
	}
	w.position = w.global
	if !w.cfg.together() {
		w.position = w.global / int64(len(w.cfg.Cluster.Workers))
	}
	// Collectives hold the workers together by themselves. In Sync mode all have joined at one step when the barrier opens.
	if (w.cfg.StartBarrier || w.cfg.together()) && !w.cfg.collective() {
		_, _, err = w.x.barrier(ctx)
	}
	return err
}

// step computes the gradient of the next batch and exchanges it.
func (w *worker[F]) step(ctx context.Context, stop bool) error {
	w.note("the gradient of a step")
	x, y := w.batch(w.position)
	loss := w.model.Gradient(w.params, x, y, w.grad)
	if err := w.converges(loss); err != nil {
		return err
	}
	w.note("the exchange of a step")
	global, dropped, err := w.x.step(ctx, w.grad, w.params, ps.Contribution{Weight: float64(len(y)), CountStep: true, Stop: stop})
	if err != nil {
		return err
	}
	w.global = global
	w.position++
	if w.cfg.together() {
		w.position = global
	}
	info := StepInfo{Step: global, Loss: loss / float64(len(y)), Samples: len(y), Dropped: dropped}
	w.note("the hooks after a step")
	if err := w.hooks.afterStep(ctx, w.session(), info); err != nil {
		return err
	}
	if w.chief == nil && !w.cfg.together() && w.firstLeft(w.cfg.Comm.Lost()) {
		if err := w.takeOver(ctx); err != nil {
			return err
		}
	}
	if w.chief != nil {
		return w.chief.afterStep(ctx, w, info)
	}
	return nil
}

// converges is an error if a loss says that training has diverged.
func (w *worker[F]) converges(loss float64) error {
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return w.diverged("the loss", loss)
	}
	return nil
}

// diverged is the error of training with a number that is not finite.
func (w *worker[F]) diverged(what string, x float64) error {
	return fmt.Errorf("train: worker %d: %s is %v at step %d: training diverged; a learning rate below %v may help", w.index, what, x, w.global, w.plan.rule.Rate)
}

// note says what this worker is about to do, to those that will wait for it in a collective.
func (w *worker[F]) note(what string) { collective.Note(w.cfg.Comm, what) }

// batch gathers the rows of the worker's n-th batch.
func (w *worker[F]) batch(n int64) ([]F, []int32) {
	b := w.plan.batches
	steps := int64(b.Steps())
	if epoch := int(n / steps); epoch != w.epoch {
		w.epoch = epoch
		if turn := b.Turn(w.index, epoch); turn != w.turn && !w.cfg.together() {
			w.take(turn)
		}
		w.order = b.Order(w.turn, epoch, w.shard.Rows())
	}
	begin, end := b.Bounds(w.turn, int(n%steps))
	w.features, w.classes = w.features[:0], w.classes[:0]
	for _, row := range w.order[begin:end] {
		for _, v := range w.shard.Row(row) {
			w.features = append(w.features, F(v))
		}
		w.classes = append(w.classes, w.shard.Y[row])
	}
	return w.features, w.classes
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
