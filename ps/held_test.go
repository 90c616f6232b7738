package ps

// Gradients that a server holds back for want of room.

import (
	"context"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// A gradient for which there is no room is received when what took the room will not come:
// because its sender was lost, sent something else, or is done without it.
func TestHeldGradientsGoOnWhenRoomIsGivenUp(t *testing.T) {
	const n = 4096 // one block, and more than travels with its header
	for what, giveUp := range map[string]func(context.Context, *Worker, header) error{
		"lost": func(context.Context, *Worker, header) error { return errDead },
		"wrong size": func(ctx context.Context, w *Worker, h header) error {
			return mpi.Send(ctx, w.comm, make([]float64, n/2), 0, w.tags.requestPayload(h.seq))
		},
		"done": func(context.Context, *Worker, header) error { return nil },
	} {
		cfg := oneTable(1, 3, n, Async)
		cfg.BlockBytes, cfg.UnappliedBytes = 8*n, 8*n
		announced, held := make(chan struct{}), make(chan struct{})
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			switch w.Index() {
			case 0:
				_, err := Set(ctx, w, "w", 0, make([]float64, n), 0).Wait(ctx)
				return err
			case 1:
				values := make([]float64, n)
				if _, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil {
					return err
				}
				<-announced
				f := Push(ctx, w, "w", values, Contribution{})
				_, err := w.AddStep(ctx, 0) // the server has seen the gradient by then
				close(held)
				if err == nil {
					_, err = f.Wait(ctx)
				}
				return err
			}
			values := make([]float64, n)
			if _, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil {
				return err
			}
			h, err := announce(ctx, w, n)
			close(announced)
			if err != nil {
				return err
			}
			<-held
			return giveUp(ctx, w, h)
		})
		if what == "lost" {
			s.fine(3)
		} else {
			s.fine()
		}
		if got := s.summaries[0]; got.Updates != 1 || got.PeakUnappliedBytes != 8*n {
			t.Errorf("%s: %+v: want 1 update, one gradient at a time", what, got)
		}
	}
}

// A gradient that waits for the room of later workers' is next when the one before it is done.
func TestHeldGradientIsNextWhenTheOneBeforeIsDone(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		const n = 4096 // one block, and more than travels with its header
		cfg := oneTable(1, 3, n, Sync)
		cfg.BlockBytes, cfg.UnappliedBytes, cfg.Deadline = 8*n, 8*n, time.Second
		set, landed, held := make(chan struct{}), make(chan struct{}), make(chan struct{})
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			values := make([]float64, n)
			if w.Chief() {
				_, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx)
				close(set)
				<-held
				return err
			}
			<-set
			if w.Index() == 1 {
				<-landed
			}
			f := Push(ctx, w, "w", values, Contribution{})
			if w.Index() == 2 {
				_, err := f.Wait(ctx)
				close(landed)
				return err
			}
			_, err := w.AddStep(ctx, 0) // the server has seen the gradient by then
			close(held)
			if err == nil {
				_, err = f.Wait(ctx)
			}
			return err
		})
		s.fine()
		if got := s.summaries[0].Updates; got != 1 {
			t.Errorf("%d updates, want that of the two gradients", got)
		}
	})
}

// Gradients of later steps that came with their headers take no room from those of the step that is gathered.
func TestSmallLaterGradientsTakeNoRoom(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		const large, small, steps = 20480, inlineBytes, 5 // blocks in bytes
		cfg := Config{Cluster: Counts(1, 3), Mode: Sync, Rule: Rule{Rate: 1}, Tables: []Table{{"w", (large + small) / 4, Float32}},
			Aggregate: 2, BlockBytes: large, UnappliedBytes: 3 * (large + small)}
		ahead := make(chan struct{})
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			values := make([]float32, (large+small)/4)
			if _, err := setAndPull(ctx, w, values); err != nil {
				return err
			}
			if !w.Chief() {
				<-ahead
			}
			var pushed []*Future
			for range steps {
				pushed = append(pushed, Push(ctx, w, "w", values, Contribution{}))
			}
			_, err := w.AddStep(ctx, 0) // the server has seen them by then
			if w.Chief() {
				close(ahead)
			}
			for _, f := range pushed {
				if err == nil {
					_, err = f.Wait(ctx)
				}
			}
			return err
		})
		s.fine()
	})
}

// Values are set, although the gradients of workers that wait for their setter fill the room: it gives its own only then.
func TestValuesAreSetWithoutRoom(t *testing.T) {
	for _, mode := range []Mode{Async, Sync} {
		mpitest.InBubble(t, func(t *testing.T) {
			const n = 4096 // one block, and more than travels with its header
			cfg := oneTable(1, 2, n, mode)
			cfg.Tables = append(cfg.Tables, Table{"v", n, Float64})
			cfg.BlockBytes, cfg.UnappliedBytes, cfg.Deadline = 8*n, 8*n, time.Second
			landed := make(chan struct{})
			s := play(t, cfg, func(ctx context.Context, w *Worker) error {
				values, grad := make([]float64, n), make([]float64, n)
				if _, err := setAndPull(ctx, w, values); err != nil {
					return err
				}
				if w.Chief() {
					<-landed
					if _, err := Set(ctx, w, "v", 0, values, 0).Wait(ctx); err != nil {
						return err
					}
				} else {
					_, err := Push(ctx, w, "w", grad, Contribution{}).Wait(ctx)
					close(landed)
					if err != nil {
						return err
					}
				}
				_, err := Pull(ctx, w, "v", values).Wait(ctx)
				if err == nil && w.Chief() {
					_, err = Push(ctx, w, "w", grad, Contribution{}).Wait(ctx)
				}
				return err
			})
			s.fine()
		})
	}
}
