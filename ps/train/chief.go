package train

import (
	"context"
	"fmt"
	"time"
)

// The longest time between two metrics, since a hundredth of a long run may be hours. It is firstMetric at first,
// to show soon whether training goes well, and then twice as long each time, up to metricTime.
const (
	firstMetric = 500 * time.Millisecond
	metricTime  = 5 * time.Second
)

// chief is what worker 0, or the first worker that is left, does besides training: measure, report, write.
type chief[F Float] struct {
	out            *output
	evaluateEvery  int64 // steps between evaluations
	nextEvaluation int64 // step of the next evaluation
	metricEvery    int64 // steps between metrics
	nextMetric     int64 // step of the next metric
	metricWithin   time.Duration
	saved          int64 // step of the last checkpoint

	lastStep int64
	lastTime time.Time
	loss     float64
	batches  int
}

func newChief[F Float](ctx context.Context, w *worker[F]) (*chief[F], error) {
	c := &chief[F]{lastStep: w.global, lastTime: time.Now(), metricWithin: firstMetric, saved: w.global}
	planned := w.plan.stop.LastStep + w.plan.stop.NumSteps
	c.evaluateEvery = w.cfg.EvaluateEvery
	if c.evaluateEvery == 0 {
		c.evaluateEvery = max(w.plan.perEpoch, planned/100)
	}
	c.metricEvery = max(1, planned/100)
	c.nextEvaluation, c.nextMetric = after(w.global, c.evaluateEvery), after(w.global, c.metricEvery)
	if w.cfg.Out != "" {
		if err := w.mayWrite(ctx); err != nil { // a worker that takes a lost chief's place may come too late
			return nil, err
		}
		since := w.global // a successor goes on with the metrics of the lost chief
		if w.index == 0 {
			since = w.resumed // the other workers may have made steps since the checkpoint
		}
		var err error
		if c.out, err = newOutput(w.cfg.Out, float64(since)/float64(w.plan.perEpoch)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// after is the next multiple of every.
func after(step, every int64) int64 { return (step/every + 1) * every }

// afterStep reports, evaluates and saves when it is time.
func (c *chief[F]) afterStep(ctx context.Context, w *worker[F], info StepInfo) error {
	c.loss += info.Loss
	c.batches++
	save := w.cfg.CheckpointEvery > 0 && w.global-c.saved >= w.cfg.CheckpointEvery
	select {
	case <-w.cfg.Save:
		if save = w.cfg.Checkpoint != ""; !save {
			w.cfg.Log.Warn("asked to save, but the run has no checkpoint: nothing is saved", "step", w.global)
		}
	default:
	}
	if save {
		if err := w.fetch(ctx); err != nil {
			return err
		}
		if err := w.save(); err != nil {
			return err
		}
		c.saved = w.global
	}
	if w.global < c.nextMetric && w.global < c.nextEvaluation && time.Since(c.lastTime) < c.metricWithin {
		return nil
	}
	c.metricWithin = min(2*c.metricWithin, metricTime)
	var accuracy *float64
	if w.global >= c.nextEvaluation {
		w.note("an evaluation")
		_, a, err := w.evaluate(ctx, &w.data.Test)
		if err != nil {
			return err
		}
		accuracy = &a
		c.nextEvaluation = after(w.global, c.evaluateEvery)
	}
	return c.reportMetric(ctx, w, accuracy)
}

// reportMetric reports how the run stands.
func (c *chief[F]) reportMetric(ctx context.Context, w *worker[F], accuracy *float64) error {
	now := time.Now()
	rows := float64(w.data.Train.Rows())
	m := Metric{
		Step: w.global, Steps: w.plan.stop.LastStep, Epoch: float64(w.global) / float64(w.plan.perEpoch),
		Accuracy: accuracy, Seconds: now.Sub(w.begun).Seconds(),
	}
	if c.batches > 0 {
		m.Loss = c.loss / float64(c.batches)
	}
	if took := now.Sub(c.lastTime).Seconds(); took > 0 {
		m.SamplesPerSecond = float64(w.global-c.lastStep) / float64(w.plan.perEpoch) * rows / took
	}
	c.lastStep, c.lastTime, c.loss, c.batches = w.global, now, 0, 0
	c.nextMetric = after(w.global, c.metricEvery)
	if err := w.mayWrite(ctx); err != nil {
		return err
	}
	if w.cfg.Report != nil {
		w.cfg.Report(m)
	}
	if c.out == nil {
		return nil
	}
	return c.out.metric(m)
}

// conclude evaluates the final parameters.
func (c *chief[F]) conclude(ctx context.Context, r *Result, w *worker[F]) (err error) {
	if r.TrainLoss, _, err = w.evaluate(ctx, &w.data.Train); err != nil {
		return err
	}
	_, r.TestAccuracy, err = w.evaluate(ctx, &w.data.Test)
	r.Evaluated = err == nil
	return err
}

// evaluate measures the parameters at hand. It gives a sign of life now and then: the others wait.
func (w *worker[F]) evaluate(ctx context.Context, s *Split) (loss, accuracy float64, err error) {
	last := time.Now()
	return evaluate(w.model, w.params, s, func() error {
		if time.Since(last) < w.cfg.Deadline/4 {
			return nil
		}
		last = time.Now()
		return w.x.alive(ctx)
	})
}

// write writes what the run leaves behind, but for its result.
func (c *chief[F]) write(ctx context.Context, r *Result, w *worker[F]) error {
	if !r.Evaluated {
		return nil
	}
	last := Metric{Step: r.Steps, Steps: w.plan.stop.LastStep, Epoch: float64(r.Steps) / float64(w.plan.perEpoch),
		Loss: r.TrainLoss, Accuracy: &r.TestAccuracy, SamplesPerSecond: r.SamplesPerSecond, Seconds: r.Seconds}
	if err := w.mayWrite(ctx); err != nil { // a worker that was counted as lost would replace its successor's model
		return err
	}
	if w.cfg.Report != nil {
		w.cfg.Report(last)
	}
	if c.out == nil {
		return nil
	}
	if err := c.out.metric(last); err != nil {
		return err
	}
	if err := writeModel(c.out.path("model.safetensors"), w.model, w.params, w.data, r); err != nil {
		return err
	}
	return c.out.close(r)
}

// replace takes back the end of the metrics, which a writer wrote before it was lost: this worker writes it anew.
func (c *chief[F]) replace(ctx context.Context, r *Result, w *worker[F]) error {
	if c.out == nil {
		return nil
	}
	if err := w.mayWrite(ctx); err != nil {
		return err
	}
	end := float64(r.Steps) / float64(w.plan.perEpoch)
	if err := c.out.recall(func(m Metric) bool { return m.Epoch < end }); err != nil {
		return fmt.Errorf("train: metrics: %w", err)
	}
	return nil
}

// finish writes the result, with the lost ranks as far as they are known, unless mayWrite returns an error.
func (c *chief[F]) finish(r *Result, mayWrite func() error) error {
	if !r.Evaluated || c.out == nil {
		return nil
	}
	if err := mayWrite(); err != nil {
		return err
	}
	return c.out.result(r)
}

// abandon closes files of a run that failed.
func (c *chief[F]) abandon() {
	if c.out != nil {
		c.out.metrics.Close()
	}
}
