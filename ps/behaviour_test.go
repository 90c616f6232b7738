package ps

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// setAndPull has the chief set the table "w" to values, and every worker pull them.
func setAndPull[F Float](ctx context.Context, w *Worker, values []F) (Answer, error) {
	if w.Chief() {
		if a, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx); err != nil {
			return a, err
		}
	}
	return Pull(ctx, w, "w", values).Wait(ctx)
}

// train makes steps with a table "w" of n float64 elements, gradient 1.
func train(ctx context.Context, w *Worker, n, steps int, before func(step int) error) error {
	grad, values := sequence[float64](n, 1, 0), make([]float64, n)
	if _, err := setAndPull(ctx, w, values); err != nil {
		return err
	}
	for step := range steps {
		if before != nil {
			if err := before(step); err != nil {
				return err
			}
		}
		if _, err := PushPull(ctx, w, "w", grad, values, Contribution{CountStep: true}).Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func oneTable(servers, workers, n int, mode Mode) Config {
	return Config{Cluster: Counts(servers, workers), Mode: mode, Rule: Rule{Rate: 1}, Tables: []Table{{"w", n, Float64}}}
}

// Small and large: the gradient in the frame, and in a message of its own.
var lengths = []int{100, 50_000}

// Ranks that wait spin for a moment on threads of their own, as processes do:
// with fewer threads than ranks they would take turns of ten milliseconds.
func TestMain(m *testing.M) {
	if job, ok := os.LookupEnv(benchVariable); ok { // a rank of the benchmark
		if err := benchRank(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	runtime.GOMAXPROCS(16)
	os.Exit(m.Run())
}

func TestSlowWorkerStopsNobodyInAsync(t *testing.T) {
	go1 := make(chan struct{})
	var left atomic.Int32
	left.Store(2)
	s := play(t, oneTable(1, 3, 5000, Async), func(ctx context.Context, w *Worker) error {
		err := train(ctx, w, 5000, 50, func(step int) error {
			if w.Index() == 1 && step == 1 {
				<-go1 // until the others have made all their steps
			}
			return nil
		})
		if w.Index() != 1 && left.Add(-1) == 0 {
			close(go1)
		}
		return err
	})
	s.fine()
}

// S29: nobody closes while another still talks.
func TestOthersWaitForADelayedChief(t *testing.T) {
	for _, mode := range []Mode{Async, Sync} {
		var st atomic.Pointer[stage]
		ready := make(chan *stage, 1)
		s := stagePlay(t, oneTable(2, 3, 5000, mode), ready, func(ctx context.Context, w *Worker) error {
			if w.Chief() {
				st.Store(<-ready)
			}
			if err := train(ctx, w, 5000, 5, nil); err != nil || !w.Chief() {
				return err
			}
			both := func(log string) bool { return strings.Count(log, "received done 2 of 3") == 2 }
			if err := st.Load().log.Await(ctx, both); err != nil {
				return err
			}
			return train(ctx, w, 5000, 5, nil)
		})
		s.fine()
	}
}

func TestStartBarrierHoldsUntilTheLast(t *testing.T) {
	const workers = 4
	var arrived atomic.Int32
	s := play(t, oneTable(1, workers, 10, Async), func(ctx context.Context, w *Worker) error {
		for round := int32(1); round <= 3; round++ {
			arrived.Add(1)
			if _, err := w.Barrier(ctx); err != nil {
				return err
			}
			if n := arrived.Load(); n < workers*round {
				t.Errorf("worker %d left barrier %d when %d of %d had come", w.Index(), round, n, workers*round)
			}
		}
		return nil
	})
	s.fine()
}

// A gradient that is n updates old counts an n-th, from the second on.
func TestStaleGradientsAreDiscounted(t *testing.T) {
	for _, n := range lengths {
		cfg := oneTable(1, 2, n, Async)
		cfg.StaleDiscount = true
		pulled, ahead := make(chan struct{}), make(chan struct{})
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			if w.Index() == 0 {
				err := train(ctx, w, n, 0, nil)
				<-pulled
				if err == nil {
					err = train5(ctx, w, n)
				}
				close(ahead)
				return err
			}
			values := make([]float64, n)
			_, err := Pull(ctx, w, "w", values).Wait(ctx)
			close(pulled)
			if err != nil {
				return err
			}
			<-ahead
			_, err = PushPull(ctx, w, "w", sequence[float64](n, 10, 0), values, Contribution{}).Wait(ctx)
			// Five fresh gradients of 1, then one of 10 that is five updates old.
			if err == nil && values[n-1] != -5-10.0/5 {
				t.Errorf("the values are %v, want %v", values[n-1], -7)
			}
			return err
		})
		s.fine()
	}
}

// train5 makes five steps of gradient 1 from the values that are there.
func train5(ctx context.Context, w *Worker, n int) error {
	values := make([]float64, n)
	_, err := Pull(ctx, w, "w", values).Wait(ctx)
	for range 5 {
		if err == nil {
			_, err = PushPull(ctx, w, "w", sequence[float64](n, 1, 0), values, Contribution{}).Wait(ctx)
		}
	}
	return err
}

// N-1 of N: the slowest worker's gradient of a step is dropped, and it goes
// on with the others' values.
func TestBackupWorkers(t *testing.T) {
	for _, n := range lengths {
		cfg := oneTable(1, 3, n, Sync)
		cfg.Aggregate = 2
		pulled, behind := make(chan struct{}), make(chan struct{})
		var left atomic.Int32
		left.Store(2)
		dropped := 0
		const steps = 20
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			grad, values := sequence[float64](n, float64(w.Index()+1), 0), make([]float64, n)
			a, err := setAndPull(ctx, w, values)
			if w.Index() == 2 {
				close(pulled) // before any step
				<-behind
			} else {
				<-pulled
			}
			for err == nil && a.Version < steps {
				a, err = PushPull(ctx, w, "w", grad, values, Contribution{}).Wait(ctx)
				if a.Dropped {
					dropped++
				}
			}
			if w.Index() < 2 && left.Add(-1) == 0 {
				close(behind)
			}
			// Gradients 1 and 2, never 3: their mean each step.
			if err == nil && values[n-1] != -1.5*steps {
				t.Errorf("worker %d ends at %v, want %v", w.Index(), values[n-1], -1.5*steps)
			}
			return err
		})
		s.fine()
		if dropped != 1 {
			t.Errorf("%d gradients were dropped, want the one of the slow worker", dropped)
		}
	}
}

func TestDifferentConfigurationIsRefused(t *testing.T) {
	cfg := oneTable(1, 2, 100, Async)
	s := play(t, cfg, func(ctx context.Context, w *Worker) error {
		if w.Index() == 1 {
			same := w.config
			for _, differ := range []func(*Config){func(c *Config) { c.Rule.Rate++ }, func(c *Config) { c.StaleDiscount = true }, func(c *Config) { c.Forever = true }} {
				other := w.cfg
				differ(&other)
				w.config = other.fingerprint()
				_, err := w.AddStep(ctx, 1)
				w.err = nil
				if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "configured differently") ||
					!strings.Contains(err.Error(), "Cluster, Tables, Mode, Rule, Aggregate, StaleDiscount, BlockBytes or Forever differ") {
					t.Errorf("%v", err)
				}
			}
			w.config = same
		}
		return nil
	})
	s.fine()
}

func TestWrongRequestsAreRefused(t *testing.T) {
	s := play(t, oneTable(1, 1, 100, Sync), func(ctx context.Context, w *Worker) error {
		v := make([]float64, 100)
		for what, f := range map[string]*Future{
			"no table":  Pull(ctx, w, "nope", v),
			"too short": Pull(ctx, w, "w", v[:99]),
			"float32":   Pull(ctx, w, "w", make([]float32, 100)),
			"slot":      Fetch(ctx, w, "w", 1, v),
			"version":   Set(ctx, w, "w", 0, v, -1),
		} {
			if _, err := f.Wait(ctx); !errors.Is(err, ErrConfig) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := Push(ctx, w, "w", v, Contribution{}).Wait(ctx)
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "have not been set") || !strings.Contains(err.Error(), "ps 0 (rank 0 on n0)") {
			t.Errorf("gradient before the values: %v", err)
		}
		w.err = nil
		return nil
	})
	s.fine()
}

// A pull that is given up leaves its buffer alone, and the others go on.
func TestCancelledPull(t *testing.T) {
	s := play(t, oneTable(1, 1, 50_000, Async), func(ctx context.Context, w *Worker) error {
		short, cancel := context.WithCancel(ctx)
		values := make([]float64, 50_000)
		f := Pull(ctx, w, "w", values) // nobody has set it: no answer
		cancel()
		if _, err := f.Wait(short); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if _, err := w.AddStep(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("the worker goes on: %v", err)
		}
		return nil // and Finish works
	})
	s.fine()
}

// An answer that came after its worker had given up waiting for it keeps nobody from ending.
func TestAnswerThatNobodyFetches(t *testing.T) {
	for _, n := range []int{1500, 50_000} { // with the values in a frame that waits for its receiver, and apart
		mpitest.InBubble(t, func(t *testing.T) {
			cfg := oneTable(1, 2, n, Async)
			cfg.Deadline = 10 * time.Second
			givenUp, set := make(chan struct{}), make(chan struct{})
			s := play(t, cfg, func(ctx context.Context, w *Worker) error {
				values := make([]float64, n)
				if w.Index() == 0 {
					<-givenUp
					_, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx) // the server answers the pull now
					close(set)
					return err
				}
				short, cancel := context.WithCancel(ctx)
				defer cancel()
				f := Pull(ctx, w, "w", values)
				if _, err := w.AddStep(ctx, 0); err != nil { // the server has seen the pull by then
					return err
				}
				cancel()
				if _, err := f.Wait(short); !errors.Is(err, context.Canceled) {
					t.Errorf("%v", err)
				}
				close(givenUp)
				<-set
				return nil
			})
			s.fine()
		})
	}
}

// Gradients beyond the bound wait at the workers.
func TestUnappliedBytesAreBounded(t *testing.T) {
	const n, blockBytes, workers = 64 << 10, 32 << 10, 4 // 512 KiB in 16 blocks
	for _, mode := range []Mode{Async, Sync} {
		for _, bound := range []int{0, blockBytes, 3 * blockBytes, 8 * blockBytes} {
			cfg := oneTable(2, workers, n, mode)
			cfg.BlockBytes, cfg.UnappliedBytes, cfg.Window = blockBytes, bound, 64
			s := play(t, cfg, func(ctx context.Context, w *Worker) error { return train(ctx, w, n, 10, nil) })
			s.fine()
			if bound == 0 {
				continue // the default
			}
			for server := range 2 {
				if peak := s.summaries[server].PeakUnappliedBytes; peak > bound+blockBytes {
					t.Errorf("%s: ps %d held %d bytes, the bound is %d and a block of %d", mode, server, peak, bound, blockBytes)
				}
			}
		}
	}
	cfg := oneTable(1, 3, n, Sync)
	cfg.Aggregate, cfg.UnappliedBytes = 2, n*8*3-1
	s := play(t, cfg, func(ctx context.Context, w *Worker) error { return errDead })
	if !errors.Is(s.errs[0], ErrConfig) {
		t.Errorf("backup workers without room: %v", s.errs[0])
	}
}

// Values and the optimizer's vectors go out and back in without a change.
func TestStateSurvivesFetchAndSet(t *testing.T) {
	cfg := oneTable(2, 1, 5000, Sync)
	cfg.Rule = Rule{Optimizer: Adam, Rate: 0.01}
	run := func(state [3][]float64, version int64, steps int) ([3][]float64, int64) {
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			for _, slot := range []int{1, 2, 0} {
				if state[slot] == nil {
					state[slot] = make([]float64, 5000)
				}
				if _, err := Set(ctx, w, "w", slot, state[slot], version).Wait(ctx); err != nil {
					return err
				}
			}
			a, err := Pull(ctx, w, "w", state[0]).Wait(ctx)
			for range steps {
				if err == nil {
					grad := sequence[float64](5000, float64(a.Version)-3, 0.001)
					a, err = PushPull(ctx, w, "w", grad, state[0], Contribution{}).Wait(ctx)
				}
			}
			version = a.Version
			for slot := range state {
				if err == nil {
					_, err = Fetch(ctx, w, "w", slot, state[slot]).Wait(ctx)
				}
			}
			return err
		})
		s.fine()
		return state, version
	}
	whole, _ := run([3][]float64{}, 0, 20)
	half, version := run([3][]float64{}, 0, 10)
	if version != 10 {
		t.Errorf("version %d after 10 steps", version)
	}
	resumed, _ := run(half, version, 10)
	for slot := range whole {
		if !slices.Equal(whole[slot], resumed[slot]) {
			t.Errorf("slot %d differs after a resume", slot)
		}
	}
}

// Gradients are for one update after the other, also where a later one is sent before an earlier one is answered.
func TestOverlappingRequestsCountUpdatesOn(t *testing.T) {
	for _, n := range lengths {
		cfg := oneTable(1, 1, n, Sync)
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			const first = 1000
			grad, odd, even := sequence[float64](n, 1, 0), make([]float64, n), make([]float64, n)
			if _, err := Set(ctx, w, "w", 0, odd, first).Wait(ctx); err != nil {
				return err
			}
			before := PushPull(ctx, w, "w", grad, odd, Contribution{})
			for i, values := range [][]float64{even, odd, even} {
				f := PushPull(ctx, w, "w", grad, values, Contribution{})
				a, err := before.Wait(ctx)
				if err != nil || a.Dropped || a.Version != first+int64(i)+1 {
					return fmt.Errorf("update %d: %+v %v", i, a, err)
				}
				before = f
			}
			_, err := before.Wait(ctx)
			if err == nil && even[n-1] != -4 {
				err = fmt.Errorf("the values are %v after four gradients of 1", even[n-1])
			}
			return err
		})
		s.fine()
	}
}

// A request that waits for long keeps its answer to itself, although as many have come after it as there are numbers.
func TestRequestNumbersUnderWayAreNotUsedTwice(t *testing.T) {
	const n, numbers = 10, tags(7)
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mpitest.Together(t, worlds, func(ctx context.Context, c *mpi.Comm) error {
		cfg := oneTable(1, 1, n, Async)
		cfg.Tables = append(cfg.Tables, Table{"v", n, Float64})
		cfg.Comm, cfg.Window = c, 2*int(numbers)
		if c.Rank() == 0 {
			server, err := NewServer(cfg)
			if err == nil {
				server.tags = numbers
				_, err = server.Serve(ctx)
			}
			return err
		}
		w, err := NewWorker(cfg)
		if err != nil {
			return err
		}
		w.tags = numbers
		values, late := make([]float64, n), make([]float64, n)
		waits := Pull(ctx, w, "v", late) // until it is set
		if _, err := Set(ctx, w, "w", 0, sequence[float64](n, 1, 0), 0).Wait(ctx); err != nil {
			return err
		}
		for range 2 * numbers {
			clear(values)
			if _, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil || values[0] != 1 || late[0] != 0 {
				return fmt.Errorf("values %v where 1 was set, and %v where none were: %v", values[0], late[0], err)
			}
		}
		if _, err := Set(ctx, w, "v", 0, sequence[float64](n, 2, 0), 0).Wait(ctx); err != nil {
			return err
		}
		if _, err := waits.Wait(ctx); err != nil || late[0] != 2 {
			return fmt.Errorf("values %v where 2 was set: %v", late[0], err)
		}
		var pulls []*Future
		for range numbers {
			pulls = append(pulls, Pull(ctx, w, "w", make([]float64, n)))
		}
		one := Pull(ctx, w, "w", values)
		if !errors.Is(one.err, ErrConfig) || !strings.Contains(one.err.Error(), "all 7 numbers") {
			return fmt.Errorf("a request for which there is no number: %v", one.err)
		}
		for _, f := range pulls {
			if _, err := f.Wait(ctx); err != nil {
				return err
			}
		}
		_, err = w.Finish(ctx, 0, 0)
		return err
	})
}

// A weight by which nothing can be divided is refused by the worker, and what comes to a server all the same is answered.
func TestWrongWeightsAreRefused(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		s := play(t, oneTable(1, 1, 100, Async), func(ctx context.Context, w *Worker) error {
			v := make([]float64, 100)
			if _, err := Set(ctx, w, "w", 0, v, 0).Wait(ctx); err != nil {
				return err
			}
			for _, weight := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
				_, err := Push(ctx, w, "w", v, Contribution{Weight: weight}).Wait(ctx)
				if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), fmt.Sprintf("weight %v; want a positive number", weight)) {
					t.Errorf("weight %v: %v", weight, err)
				}
			}
			if _, err := w.AddStep(ctx, 0); err != nil {
				t.Errorf("the worker does not go on: %v", err)
			}
			w.err = nil
			b := &w.shards.blocks[0][0]
			f := &Future{w: w, op: opPush, version: -1}
			f.err = w.issue(ctx, f, 0, b, header{op: opPush, weight: -1}, mpi.Bytes(v), nil)
			if _, err := f.Wait(ctx); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "weight -1") {
				t.Errorf("a frame with weight -1: %v", err)
			}
			w.err = nil
			return nil
		})
		s.fine()
	})
}

// What a server answers that is no answer is an error that names the server.
func TestMalformedAnswersNameTheServer(t *testing.T) {
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mpitest.Together(t, worlds, func(ctx context.Context, c *mpi.Comm) error {
		cfg := oneTable(1, 1, 10, Async)
		cfg.Comm = c
		w, err := NewWorker(cfg)
		if c.Rank() == 0 {
			return mpi.Send(ctx, c, []byte("FPS2"), 1, tagsOf(c).reply(0))
		}
		if err == nil {
			_, err = w.AddStep(ctx, 1)
		}
		if !errors.Is(err, ErrFrame) || !strings.Contains(err.Error(), "ps 0 (rank 0 on sim)") || !strings.Contains(err.Error(), "4 bytes") {
			return fmt.Errorf("a malformed answer: %w", err)
		}
		return nil
	})
}

// A frame that no worker of this package sends is refused, and harms neither the server nor who goes on.
func TestGradientsForASlotAreRefused(t *testing.T) {
	for _, mode := range []Mode{Async, Sync} {
		s := play(t, oneTable(1, 1, 100, mode), func(ctx context.Context, w *Worker) error {
			values := make([]float64, 100)
			if _, err := setAndPull(ctx, w, values); err != nil {
				return err
			}
			f := &Future{w: w, op: opPushPull, version: -1}
			f.err = w.issue(ctx, f, 0, &w.shards.blocks[0][0], header{op: opPushPull, slot: 7, weight: 1}, mpi.Bytes(values), mpi.Bytes(values))
			if _, err := f.Wait(ctx); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "a gradient for slot 7") {
				t.Errorf("%s: %v", mode, err)
			}
			w.err = nil
			return nil
		})
		s.fine()
	}
}

// So is what follows a worker's DONE: updates wait for it no more, and would be made twice.
func TestRequestsAfterDoneAreRefused(t *testing.T) {
	refused := make(chan struct{})
	s := play(t, oneTable(1, 2, 100, Sync), func(ctx context.Context, w *Worker) error {
		values := make([]float64, 100)
		if _, err := setAndPull(ctx, w, values); err != nil {
			return err
		}
		if !w.Chief() {
			<-refused
			return nil
		}
		done := &Future{w: w, op: opDone, version: -1} // as Finish does
		done.err = w.issue(ctx, done, 0, nil, header{op: opDone}, nil, nil)
		_, err := Push(ctx, w, "w", values, Contribution{}).Wait(ctx)
		close(refused)
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "worker 0 is done") {
			t.Errorf("%v", err)
		}
		w.err = nil
		a, err := done.Wait(ctx)
		w.err = errFinished
		return errors.Join(err, finalBarrier(ctx, w.cfg, a.absent))
	})
	s.fine()
}

// Values that are set once more, at an earlier version, are there for all at once: nobody waits for the later one in Async mode.
func TestAsyncTakesValuesOfAnEarlierVersion(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		const n = 100
		pushed, again := make(chan struct{}), make(chan struct{})
		s := play(t, oneTable(1, 2, n, Async), func(ctx context.Context, w *Worker) error {
			values := make([]float64, n)
			if w.Chief() {
				defer close(again)
				if _, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx); err != nil {
					return err
				}
				<-pushed
				_, err := Set(ctx, w, "w", 0, sequence[float64](n, 7, 0), 0).Wait(ctx)
				return err
			}
			err := train5(ctx, w, n)
			close(pushed)
			<-again
			if err != nil {
				return err
			}
			a, err := Pull(ctx, w, "w", values).Wait(ctx)
			if err == nil && (a.Version != 0 || values[0] != 7) {
				err = fmt.Errorf("version %d, values %v", a.Version, values[0])
			}
			return err
		})
		s.fine()
	})
}

// Values that are set while the step has gradients, which are for others, are refused.
func TestValuesAreNotSetAmidAStep(t *testing.T) {
	for _, n := range lengths {
		for _, aggregate := range []int{0, 2} {
			mpitest.InBubble(t, func(t *testing.T) {
				cfg := oneTable(1, 3, n, Sync)
				cfg.Aggregate = aggregate
				pushed := make(chan struct{})
				s := play(t, cfg, func(ctx context.Context, w *Worker) error {
					values := make([]float64, n)
					if _, err := setAndPull(ctx, w, values); err != nil {
						return err
					}
					if w.Index() == 1 {
						defer close(pushed)
						_, err := Push(ctx, w, "w", values, Contribution{}).Wait(ctx)
						return err
					}
					<-pushed
					if w.Chief() {
						_, err := Set(ctx, w, "w", 0, values, 7).Wait(ctx)
						if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), `version 7 for block 0 of table "w", whose step 0 has gradients`) {
							t.Errorf("%v", err)
						}
						w.err = nil
					}
					return nil
				})
				s.fine()
			})
		}
	}
}

// Backup workers need the gradients of all at one time: unless a bound is set, there is room for them.
func TestBackupWorkersHaveRoom(t *testing.T) {
	cfg := oneTable(1, 3, 4096, Sync)
	cfg.Tables[0].Len, cfg.Aggregate = defaultUnappliedBytes/8/2, 2
	worlds, err := mpi.Local(4, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Comm = worlds[0].Comm()
	if _, err := NewServer(cfg); err != nil {
		t.Errorf("without a bound: %v", err)
	}
	cfg.UnappliedBytes = defaultUnappliedBytes
	if _, err := NewServer(cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "more servers") {
		t.Errorf("with a bound that is too low: %v", err)
	}
}

// TestNothingFollowsFinish: the servers have ended, or will; a worker that goes on is told so and waits for nobody.
func TestNothingFollowsFinish(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		const n = 10
		s := play(t, oneTable(1, 1, n, Async), func(ctx context.Context, w *Worker) error {
			values := make([]float64, n)
			if _, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx); err != nil {
				return err
			}
			if _, err := w.Finish(ctx, 0, 1); err != nil {
				return err
			}
			_, push := Push(ctx, w, "w", values, Contribution{}).Wait(ctx)
			_, pull := Pull(ctx, w, "w", values).Wait(ctx)
			_, set := Set(ctx, w, "w", 0, values, 0).Wait(ctx)
			_, step := w.AddStep(ctx, 1)
			_, barrier := w.Barrier(ctx)
			_, finish := w.Finish(ctx, 0, 1)
			for what, err := range map[string]error{"Push": push, "Pull": pull, "Set": set, "AddStep": step,
				"Barrier": barrier, "Alive": w.Alive(ctx), "Finish": finish} {
				if !errors.Is(err, mpi.ErrClosed) {
					return fmt.Errorf("%s after Finish: %v, want ErrClosed", what, err)
				}
			}
			return nil
		})
		s.fine()
	})
}
