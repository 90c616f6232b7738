package ps

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestSyncEndsForAllWhenAWorkerIsLost(t *testing.T) {
	for _, servers := range []int{1, 2} {
		for _, n := range lengths {
			begin := time.Now()
			s := play(t, oneTable(servers, 3, n, Sync), func(ctx context.Context, w *Worker) error {
				return train(ctx, w, n, 1000, func(step int) error {
					if w.Index() == 2 && step == 3 {
						return errDead
					}
					return nil
				})
			})
			dead := servers + 2
			for rank, err := range s.errs {
				if rank == dead {
					continue
				}
				if err == nil {
					t.Errorf("%d ps: rank %d ended well", servers, rank)
					continue
				}
				for _, want := range []string{"worker 2", "rank 3 on n3"} {
					if want = strings.ReplaceAll(want, "3", string(rune('0'+dead))); !strings.Contains(err.Error(), want) {
						t.Errorf("%d ps: rank %d says %q, which lacks %q", servers, rank, err, want)
					}
				}
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("%d ps: it took %v", servers, took)
			}
			if t.Failed() {
				t.Logf("log:\n%s", s.log)
			}
		}
	}
}

func TestAsyncGoesOnWithoutALostWorker(t *testing.T) {
	for _, servers := range []int{1, 2} {
		for _, n := range lengths {
			s := play(t, oneTable(servers, 3, n, Async), func(ctx context.Context, w *Worker) error {
				return train(ctx, w, n, 200, func(step int) error {
					if w.Index() == 1 && step == 3 {
						return errDead
					}
					return nil
				})
			})
			dead := servers + 1
			s.fine(dead)
			for rank := range s.errs {
				switch {
				case rank < servers && !slices.Equal(s.summaries[rank].Lost, []int{dead}):
					t.Errorf("ps %d says lost %v, want [%d]", rank, s.summaries[rank].Lost, dead)
				case rank >= servers && rank != dead && !slices.Equal(s.lost[rank], []int{dead}):
					t.Errorf("rank %d hears lost %v, want [%d]", rank, s.lost[rank], dead)
				}
			}
			if got := s.summaries[0].GlobalStep; got != 2*200+3 {
				t.Errorf("global step %d, want %d", got, 2*200+3)
			}
		}
	}
}

// A worker that dies after its DONE is no loss of work, and stops nobody.
func TestLossAfterDone(t *testing.T) {
	for _, mode := range []Mode{Async, Sync} {
		s := play(t, oneTable(1, 3, 100, mode), func(ctx context.Context, w *Worker) error {
			if err := train(ctx, w, 100, 5, nil); err != nil {
				return err
			}
			if w.Index() != 2 {
				// Go on only when the server knows that worker 2 is gone.
				for len(w.comm.Lost()) == 0 {
					if err := ctx.Err(); err != nil {
						return err
					}
					w.comm.Iprobe(0, tagRequest)
				}
				return nil
			}
			f := &Future{w: w, op: opDone, version: -1}
			if err := w.issue(ctx, f, 0, nil, header{op: opDone}, nil, nil); err != nil {
				return err
			}
			f.pieces[0].request.Wait(ctx)
			return errDead
		})
		s.fine(3)
		if len(s.summaries[0].Lost) != 0 {
			t.Errorf("%s: lost %v", mode, s.summaries[0].Lost)
		}
	}
}

func TestALostServerIsNamedEverywhere(t *testing.T) {
	for _, mode := range []Mode{Async, Sync} {
		cfg := oneTable(2, 2, 5000, mode)
		var once sync.Once
		var s *stage
		ready := make(chan *stage, 1)
		s = stagePlay(t, cfg, ready, func(ctx context.Context, w *Worker) error {
			st := <-ready
			ready <- st
			return train(ctx, w, 5000, 100_000, func(step int) error {
				if step == 10 {
					once.Do(func() { st.fabric.Kill(1) })
				}
				return nil
			})
		})
		for rank, err := range s.errs {
			if rank != 1 && (err == nil || !strings.Contains(err.Error(), "ps 1 (rank 1 on n1)")) {
				t.Errorf("%s: rank %d says %v", mode, rank, err)
			}
		}
	}
}

func TestStartBarrierOpensWhenTheMissingOneIsLost(t *testing.T) {
	s := play(t, oneTable(1, 3, 10, Async), func(ctx context.Context, w *Worker) error {
		if w.Index() == 2 {
			return errDead
		}
		lost, err := w.Barrier(ctx)
		if !slices.Equal(lost, []int{3}) {
			t.Errorf("worker %d hears lost %v", w.Index(), lost)
		}
		return err
	})
	s.fine(3)
}

// Nobody else would ever set the values.
func TestAsyncEndsWhenTheChiefIsLostBeforeTheValuesAreSet(t *testing.T) {
	s := play(t, oneTable(1, 3, 100, Async), func(ctx context.Context, w *Worker) error {
		if w.Chief() {
			return errDead
		}
		return train(ctx, w, 100, 5, nil)
	})
	for _, rank := range []int{0, 2, 3} {
		if err := s.errs[rank]; err == nil || !strings.Contains(err.Error(), "worker 0 (rank 1 on n1)") {
			t.Errorf("rank %d says %v", rank, err)
		}
	}
}

func TestSilentWorkerIsNamedAfterTheDeadline(t *testing.T) {
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

func TestWorkerThatFailsByItself(t *testing.T) {
	wrong := errors.New("not my day")
	for _, mode := range []Mode{Async, Sync} {
		s := play(t, oneTable(1, 3, 100, mode), func(ctx context.Context, w *Worker) error {
			err := train(ctx, w, 100, 50, func(step int) error {
				if w.Index() == 2 && step == 3 {
					return wrong
				}
				return nil
			})
			if errors.Is(err, wrong) {
				w.Finish(ctx, 7, 0)
			}
			return err
		})
		if mode == Async {
			s.fine(3)
			if !slices.Equal(s.summaries[0].Failed, []int{3}) {
				t.Errorf("failed %v", s.summaries[0].Failed)
			}
			continue
		}
		for rank := range 3 {
			if err := s.errs[rank]; err == nil || !strings.Contains(err.Error(), "status 7") {
				t.Errorf("rank %d says %v", rank, err)
			}
		}
	}
}
