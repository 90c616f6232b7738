package ps

// Who counts as silent after Config.Deadline, and who only waits for others.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// In a bubble of synctest time stands still while a rank has something to do: however slow the machine is, only those
// are silent for long that say nothing.
func TestSilentWorkerIsNamedAfterTheDeadline(t *testing.T) { synctest.Test(t, silentWorkerIsNamed) }

func silentWorkerIsNamed(t *testing.T) {
	for what, act := range map[string]actor{
		"done": func(ctx context.Context, w *Worker) error {
			return train(ctx, w, 100, 3, nil)
		},
		"barrier": func(ctx context.Context, w *Worker) error {
			_, err := w.Barrier(ctx)
			return err
		},
		"step 0": func(ctx context.Context, w *Worker) error {
			return train(ctx, w, 100, 3, nil)
		},
	} {
		cfg := oneTable(1, 3, 100, Async)
		if what == "step 0" {
			cfg.Mode = Sync
		}
		cfg.Deadline = 100 * time.Millisecond
		over := make(chan struct{})
		var told atomic.Int32
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			if w.Index() == 1 {
				<-over // alive, but it says nothing
				return errors.New("woke up too late")
			}
			err := act(ctx, w)
			if err == nil {
				_, err = w.Finish(ctx, 0, 1)
			}
			if told.Add(1) == 2 {
				close(over)
			}
			return err
		})
		for _, rank := range []int{0, 1, 3} {
			if err := s.errs[rank]; err == nil || !strings.Contains(err.Error(), "worker 1 (rank 2 on n2)") || !strings.Contains(err.Error(), what) {
				t.Errorf("%s: rank %d says %v", what, rank, err)
			}
		}
		if !errors.Is(s.errs[0], ErrDeadline) {
			t.Errorf("%s: %v is no ErrDeadline", what, s.errs[0])
		}
	}
}

// announce tells ps 0 of a gradient for the one block of oneTable, whose payload does not
// come with it, and returns when the server knows.
func announce(ctx context.Context, w *Worker, n int) (header, error) {
	seq, err := w.number(0)
	if err != nil {
		return header{}, err
	}
	h := header{op: opPush, weight: 1, config: w.config, seq: seq, count: uint32(n)}
	frame := aligned(headerBytes)
	h.encode(frame)
	if err := mpi.Send(ctx, w.comm, frame, 0, tagRequest); err != nil {
		return h, err
	}
	_, err = w.AddStep(ctx, 0)
	return h, err
}

// Who announces a gradient and sends none is named when others wait for the room.
func TestSilentSenderIsNamedWhenOthersAreHeld(t *testing.T) { synctest.Test(t, silentSenderIsNamed) }

func silentSenderIsNamed(t *testing.T) {
	const n = 4096 // one block, and more than travels with its header
	cfg := oneTable(1, 3, n, Async)
	cfg.BlockBytes, cfg.UnappliedBytes, cfg.Deadline = 8*n, 8*n, 100*time.Millisecond
	set, announced, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := play(t, cfg, func(ctx context.Context, w *Worker) error {
		values := make([]float64, n)
		if w.Chief() {
			_, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx)
			close(set)
			<-over
			return err
		}
		<-set // or a slow chief would be the one that is waited for
		if _, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil {
			return err
		}
		if w.Index() == 2 {
			_, err := announce(ctx, w, n)
			close(announced)
			<-over
			return err
		}
		<-announced
		_, err := Push(ctx, w, "w", values, Contribution{}).Wait(ctx)
		close(over)
		return err
	})
	for _, rank := range []int{0, 2} {
		if err := s.errs[rank]; err == nil || !strings.Contains(err.Error(), "worker 2 (rank 3 on n3)") || !strings.Contains(err.Error(), "gradient") {
			t.Errorf("rank %d says %v", rank, err)
		}
	}
	if !errors.Is(s.errs[0], ErrDeadline) {
		t.Errorf("%v is no ErrDeadline", s.errs[0])
	}
}

// A server without a part of the tables hears nothing of a long run before its end, and of a worker that goes on alone nothing
// before that one's.
func TestServerWithoutBlocksHasPatienceAtTheEnd(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		cfg := oneTable(2, 2, 100, Async) // one block
		cfg.Deadline = 100 * time.Millisecond
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			err := train(ctx, w, 100, 10, func(int) error { return pause(ctx, cfg.Deadline/2) })
			for left := 4; err == nil && w.Chief() && left > 0; left-- { // the other is done long before
				if err = pause(ctx, cfg.Deadline/2); err == nil {
					_, err = w.AddStep(ctx, 1) // ps 0 hears of it, the other hears nothing
				}
			}
			return err
		})
		s.fine()
	})
}

// A worker that had to wait for others is silent only from when it has its answer, also where the next waiting is for the same.
func TestWaitingForOthersIsNoSilence(t *testing.T) {
	const deadline, before, after = 800 * time.Millisecond, 650 * time.Millisecond, 400 * time.Millisecond
	for _, what := range []string{"barrier", "values"} {
		t.Run(what, func(t *testing.T) {
			mpitest.InBubble(t, func(t *testing.T) {
				cfg := oneTable(1, 3, 100, Sync)
				cfg.Tables = append(cfg.Tables, Table{"v", 100, Float64})
				cfg.Deadline = deadline
				s := play(t, cfg, func(ctx context.Context, w *Worker) error {
					values, grad := [2][]float64{make([]float64, 100), make([]float64, 100)}, make([]float64, 100)
					for i, table := range []string{"w", "v"} {
						if w.Chief() {
							if _, err := Set(ctx, w, table, 0, values[i], 0).Wait(ctx); err != nil {
								return err
							}
						}
						if _, err := Pull(ctx, w, table, values[i]).Wait(ctx); err != nil {
							return err
						}
					}
					together := func(i int, table string) func() error {
						if what == "barrier" {
							return func() error { _, err := w.Barrier(ctx); return err }
						}
						f := PushPull(ctx, w, table, grad, values[i], Contribution{})
						return func() error { _, err := f.Wait(ctx); return err }
					}
					if w.Index() == 2 { // the others wait for this one at first
						if err := pause(ctx, before); err != nil {
							return err
						}
					}
					first := together(0, "w")
					if w.Index() == 0 && what == "values" { // it waits for both tables all the time
						second := together(1, "v")
						return errors.Join(first(), second())
					}
					if err := first(); err != nil {
						return err
					}
					if w.Index() == 1 { // then for this one
						if err := pause(ctx, after); err != nil {
							return err
						}
					}
					return together(1, "v")()
				})
				s.fine()
			})
		})
	}
}

// Nor is it silence that a gradient had to wait for the room of another worker's.
func TestWaitingForRoomIsNoSilence(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		const n = 4096 // one block, and more than travels with its header
		cfg := oneTable(1, 4, n, Async)
		cfg.BlockBytes, cfg.UnappliedBytes, cfg.Deadline = 8*n, 8*n, 800*time.Millisecond
		turns := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{})} // to announce, after the values
		over := make(chan struct{})
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			values := make([]float64, n)
			if w.Chief() {
				_, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx)
				close(turns[0])
				<-over
				return err
			}
			<-turns[w.Index()-1]
			if w.Index() == 3 { // it waits all the time
				defer close(over)
				_, err := Push(ctx, w, "w", values, Contribution{}).Wait(ctx)
				return err
			}
			h, err := announce(ctx, w, n)
			close(turns[w.Index()])
			if err == nil {
				err = pause(ctx, []time.Duration{1: 650 * time.Millisecond, 2: 1050 * time.Millisecond}[w.Index()])
			}
			if err == nil {
				err = mpi.Send(ctx, w.comm, values, 0, w.tags.requestPayload(h.seq))
			}
			if err == nil {
				_, err = mpi.Recv(ctx, w.comm, make([]byte, headerBytes), 0, w.tags.reply(h.seq))
			}
			<-over
			return err
		})
		s.fine()
	})
}

// Who waits for a slow worker is not silent, although a third waits for both.
func TestWhoWaitsForASlowWorkerIsNotSilent(t *testing.T) {
	for _, mode := range []Mode{Async, Sync} {
		mpitest.InBubble(t, func(t *testing.T) {
			const n = 100
			cfg := oneTable(1, 3, n, mode)
			cfg.Deadline = 100 * time.Millisecond
			s := play(t, cfg, func(ctx context.Context, w *Worker) error {
				values := make([]float64, n)
				if _, err := setAndPull(ctx, w, values); err != nil || w.Chief() {
					return err // the chief waits for the end of both
				}
				for left := 10; w.Index() == 2 && left > 0; left-- {
					if err := errors.Join(pause(ctx, cfg.Deadline/2), w.Alive(ctx)); err != nil {
						return err
					}
				}
				if mode == Sync {
					_, err := PushPull(ctx, w, "w", values, values, Contribution{}).Wait(ctx)
					return err
				}
				_, err := w.Barrier(ctx)
				return err
			})
			s.fine()
		})
	}
}

// Where all wait for each other nobody will ever speak, whatever they wait with.
func TestWorkersThatWaitForEachOtherHearOfIt(t *testing.T) {
	for _, ahead := range []bool{false, true} { // the gradient of a later step is held
		mpitest.InBubble(t, func(t *testing.T) {
			const n = 100
			cfg := oneTable(1, 2, n, Sync)
			cfg.Tables = append(cfg.Tables, Table{"v", n, Float64})
			cfg.Deadline = 100 * time.Millisecond
			s := play(t, cfg, func(ctx context.Context, w *Worker) error {
				values, grad := make([]float64, n), make([]float64, n)
				for _, table := range []string{"w", "v"} {
					if w.Chief() {
						if _, err := Set(ctx, w, table, 0, values, 0).Wait(ctx); err != nil {
							return err
						}
					}
					if _, err := Pull(ctx, w, table, values).Wait(ctx); err != nil {
						return err
					}
				}
				mine := []string{"w", "v"}[w.Index()] // of which the other gives none before it has its own
				if ahead {
					if _, err := Push(ctx, w, mine, grad, Contribution{}).Wait(ctx); err != nil {
						return err
					}
				}
				_, err := PushPull(ctx, w, mine, grad, values, Contribution{}).Wait(ctx)
				return err
			})
			if err := s.errs[0]; !errors.Is(err, ErrDeadline) {
				t.Errorf("ahead %v: the server says %v", ahead, err)
			}
			for rank := 1; rank < 3; rank++ {
				if err := s.errs[rank]; !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "silent for") {
					t.Errorf("ahead %v: rank %d says %v", ahead, rank, err)
				}
			}
		})
	}
}

// A server for which there always is a request looks up between two of them: at its context, and at who is silent.
func TestBusyServerLooksUp(t *testing.T) {
	const requests = 100
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	mpitest.Together(t, worlds, func(ctx context.Context, c *mpi.Comm) error {
		cfg := Config{Comm: c, Cluster: Counts(1, 1), Rule: Rule{Rate: 1}}
		if c.Rank() == 0 {
			if _, err := mpi.Recv(ctx, c, []byte{}, 1, FreeTag(c)); err != nil { // the requests are here by then
				return err
			}
			server, err := NewServer(cfg)
			if err != nil {
				return err
			}
			sum, err := server.Serve(ended)
			if errors.Is(err, context.Canceled) && sum.GlobalStep <= 1 {
				return nil
			}
			return fmt.Errorf("%w after %d requests", err, sum.GlobalStep)
		}
		w, err := NewWorker(cfg)
		if err != nil {
			return err
		}
		for range requests {
			h := header{op: opStep, aux: 1, config: w.config}
			frame := aligned(headerBytes)
			h.encode(frame)
			if err := mpi.Send(ctx, c, frame, 0, tagRequest); err != nil {
				return err
			}
		}
		return mpi.Send(ctx, c, []byte{}, 0, FreeTag(c))
	})
}

// pause waits, unless the test ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
