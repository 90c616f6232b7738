package train

import (
	"context"
)

// Session is a worker's view of the run for its hooks.
type Session struct {
	Worker int  // task index
	Chief  bool // worker 0
	Step   int64
}

// StepInfo is what a step has come to.
type StepInfo struct {
	Step    int64   // the global step after it
	Loss    float64 // mean cross-entropy of this worker's batch, before the update
	Samples int     // in this worker's batch
	Dropped bool    // the gradient came too late (backup workers)
}

// Hook is called by a worker along its training, in the goroutine of Run. Nil
// functions are passed over; several hooks are called in their order. An error ends
// this worker.
type Hook struct {
	Begin       func(context.Context, Session) error // before the parameters are set or fetched
	AfterCreate func(context.Context, Session) error // the parameters are there
	BeforeStep  func(context.Context, Session) error
	AfterStep   func(context.Context, Session, StepInfo) error
	// End is called once at the end, with the error that ended training or nil,
	// whatever happened; before DONE is said.
	End func(context.Context, Session, error)
}

type hooks []Hook

func (h hooks) begin(ctx context.Context, s Session) error {
	return h.each(func(k *Hook) func(context.Context, Session) error { return k.Begin }, ctx, s)
}

func (h hooks) afterCreate(ctx context.Context, s Session) error {
	return h.each(func(k *Hook) func(context.Context, Session) error { return k.AfterCreate }, ctx, s)
}

func (h hooks) beforeStep(ctx context.Context, s Session) error {
	return h.each(func(k *Hook) func(context.Context, Session) error { return k.BeforeStep }, ctx, s)
}

func (h hooks) each(which func(*Hook) func(context.Context, Session) error, ctx context.Context, s Session) error {
	for i := range h {
		if f := which(&h[i]); f != nil {
			if err := f(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h hooks) afterStep(ctx context.Context, s Session, info StepInfo) error {
	for i := range h {
		if f := h[i].AfterStep; f != nil {
			if err := f(ctx, s, info); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h hooks) end(ctx context.Context, s Session, err error) {
	for i := range h {
		if f := h[i].End; f != nil {
			f(ctx, s, err)
		}
	}
}
