package ps

// How workers are told to stop before the end.

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// All workers stop after the same step of a synchronous run.
func TestStopReachesAllAtOneStep(t *testing.T) {
	for _, who := range []string{"worker", "ps 0", "ps 1"} {
		cfg := oneTable(2, 3, 5000, Sync)
		var last [3]int64
		var st atomic.Pointer[stage]
		ready := make(chan *stage, 1)
		s := stagePlay(t, cfg, ready, func(ctx context.Context, w *Worker) error {
			if w.Chief() {
				st.Store(<-ready)
			}
			grad, values := make([]float64, 5000), make([]float64, 5000)
			a, err := setAndPull(ctx, w, values)
			for step := 0; err == nil && !w.Stopped(); step++ {
				c := Contribution{CountStep: true, Stop: who == "worker" && w.Index() == 1 && step >= 5}
				if w.Chief() && step == 5 && who != "worker" {
					st.Load().servers[who[3]-'0'].Interrupt()
				}
				a, err = PushPull(ctx, w, "w", grad, values, c).Wait(ctx)
				last[w.Index()] = a.Version
			}
			return err
		})
		s.fine()
		if last[0] < 6 || last[0] != last[1] || last[1] != last[2] {
			t.Errorf("told by %s, the workers stop at %v", who, last)
		}
	}
}

// A wish to stop is heard, too, when the gradient that it comes with is dropped.
func TestStopWithADroppedGradient(t *testing.T) {
	for _, n := range lengths {
		for _, servers := range []int{1, 2} {
			mpitest.InBubble(t, func(t *testing.T) { stopWithADroppedGradient(t, n, servers) })
		}
	}
}

func stopWithADroppedGradient(t *testing.T, n, servers int) {
	cfg := oneTable(servers, 3, n, Sync)
	cfg.Aggregate = 2
	pulled, made, dropped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var left atomic.Int32
	left.Store(2)
	var last [3]int64
	s := play(t, cfg, func(ctx context.Context, w *Worker) error {
		grad, values := make([]float64, n), make([]float64, n)
		a, err := setAndPull(ctx, w, values)
		if err != nil {
			return err
		}
		late := w.Index() == 2
		if late {
			close(pulled)
			<-made
		} else {
			<-pulled
		}
		if a, err = PushPull(ctx, w, "w", grad, values, Contribution{Stop: late}).Wait(ctx); err != nil {
			return err
		}
		if late != a.Dropped || w.Stopped() {
			return errors.New("the first gradient of the late worker is not the only one dropped, or stops the run without an update")
		}
		if late {
			close(dropped)
		} else {
			if left.Add(-1) == 0 {
				close(made)
			}
			<-dropped
		}
		for err == nil && !w.Stopped() {
			if a.Version >= 100 {
				return errors.New("not told to stop")
			}
			a, err = PushPull(ctx, w, "w", grad, values, Contribution{}).Wait(ctx)
		}
		last[w.Index()] = a.Version
		return err
	})
	s.fine()
	if last != [3]int64{2, 2, 2} {
		t.Errorf("%d elements, %d ps: the workers stop at %v, want step 2", n, servers, last)
	}
}

// Workers hear that they are to stop also where they count no steps.
func TestStopWithoutCountedSteps(t *testing.T) {
	for _, mode := range []Mode{Async, Sync} {
		for _, who := range []string{"worker", "ps 0", "ps 1"} {
			mpitest.InBubble(t, func(t *testing.T) {
				ready := make(chan *stage, 1)
				var asked atomic.Bool
				s := stagePlay(t, oneTable(2, 2, 5000, mode), ready, func(ctx context.Context, w *Worker) error {
					return untilStopped(ctx, w, "w", 5000, who, ready, &asked, func(grad, values []float64, c Contribution) error {
						_, err := PushPull(ctx, w, "w", grad, values, c).Wait(ctx)
						return err
					})
				})
				s.fine()
				if got := s.summaries[0].GlobalStep; got != 0 {
					t.Errorf("%s: %d steps counted, want none", mode, got)
				}
			})
		}
	}
}

// Workers that share nothing but the step are told, too.
func TestInterruptReachesWorkersWithoutTables(t *testing.T) {
	for _, mode := range []Mode{Async, Sync} {
		mpitest.InBubble(t, func(t *testing.T) {
			ready, asked := make(chan *stage, 1), make(chan struct{})
			s := stagePlay(t, Config{Cluster: Counts(1, 2), Mode: mode, Rule: Rule{Rate: 1}}, ready, func(ctx context.Context, w *Worker) error {
				if w.Chief() {
					(<-ready).servers[0].Interrupt()
					close(asked)
				}
				<-asked
				for range 1000 {
					if _, err := w.AddStep(ctx, 1); err != nil || w.Stopped() {
						return err
					}
				}
				return errors.New("not told to stop")
			})
			s.fine()
		})
	}
}

// What is counted on ps 0 tells it of a wish to stop, and of its answer, where all that is pushed goes elsewhere.
func TestStopWithPushesBesidePS0(t *testing.T) {
	for how, addStep := range map[string]bool{"counted with the push": false, "counted by itself": true} {
		for _, who := range []string{"worker", "ps 0", "ps 1"} {
			t.Run(how+", told by "+who, func(t *testing.T) {
				mpitest.InBubble(t, func(t *testing.T) {
					cfg := oneTable(2, 2, 100, Async)
					cfg.Tables = append(cfg.Tables, Table{"v", 100, Float64}) // on ps 1
					ready := make(chan *stage, 1)
					var asked atomic.Bool
					s := stagePlay(t, cfg, ready, func(ctx context.Context, w *Worker) error {
						return untilStopped(ctx, w, "v", 100, who, ready, &asked, func(grad, values []float64, c Contribution) error {
							c.CountStep = !addStep
							_, err := PushPull(ctx, w, "v", grad, values, c).Wait(ctx)
							if err == nil && addStep {
								_, err = w.AddStep(ctx, 1)
							}
							return err
						})
					})
					s.fine()
				})
			})
		}
	}
}

// untilStopped makes steps until the worker is told to stop, which who ("worker", the first, or "ps N") asks for at the sixth. It
// has to hear of that within 1,000 steps; how many it makes before depends on when the other gets a processor.
func untilStopped(ctx context.Context, w *Worker, table string, n int, who string, ready <-chan *stage, asked *atomic.Bool,
	step func(grad, values []float64, c Contribution) error) error {
	grad, values := make([]float64, n), make([]float64, n)
	if w.Chief() {
		if _, err := Set(ctx, w, table, 0, values, 0).Wait(ctx); err != nil {
			return err
		}
	}
	_, err := Pull(ctx, w, table, values).Wait(ctx)
	for i, since := 0, 0; err == nil && !w.Stopped(); i++ {
		if asked.Load() {
			since++
		}
		if since == 1000 {
			return errors.New("not told to stop")
		}
		asks := w.Chief() && i == 5
		if asks && who != "worker" {
			(<-ready).servers[who[3]-'0'].Interrupt()
		}
		err = step(grad, values, Contribution{Stop: asks && who == "worker"})
		if asks {
			asked.Store(true)
		}
	}
	return err
}
