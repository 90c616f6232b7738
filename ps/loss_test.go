package ps

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

func TestSyncEndsForAllWhenAWorkerIsLost(t *testing.T) {
	for _, servers := range []int{1, 2} {
		for _, n := range lengths {
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
			f.parts[0].request.Wait(ctx)
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
	h := header{op: opPush, weight: 1, config: w.config, seq: w.number(), count: uint32(n)}
	frame := aligned(headerBytes)
	h.encode(frame)
	if err := mpi.Send(ctx, w.comm, frame, 0, tagRequest); err != nil {
		return h, err
	}
	_, err := w.AddStep(ctx, 0)
	return h, err
}

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

// Nobody else would ever set the values.
func TestAsyncEndsWhenTheChiefFailsBeforeTheValuesAreSet(t *testing.T) {
	s := play(t, oneTable(1, 3, 100, Async), func(ctx context.Context, w *Worker) error {
		if w.Chief() {
			_, err := w.Finish(ctx, 1, 0)
			return err
		}
		return train(ctx, w, 100, 5, nil)
	})
	for _, rank := range []int{0, 2, 3} {
		if err := s.errs[rank]; err == nil || !strings.Contains(err.Error(), "worker 0 (rank 1 on n1)") {
			t.Errorf("rank %d says %v", rank, err)
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

// pause waits, unless the test ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
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

// Where a run has gone on without a worker, it is the loss of a server that ends it.
func TestTheLossThatEndsTheRunIsNamed(t *testing.T) {
	fabric := sim.New(sim.Config{Ranks: 4})
	worlds, err := mpi.Local(4, mpi.LocalOptions{Fabric: fabric})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	comm := worlds[2].Comm() // worker 0
	for n, rank := range []int{3, 1} {
		fabric.Kill(rank)
		for len(comm.Lost()) <= n {
			if ctx.Err() != nil {
				t.Fatalf("the loss of rank %d is not heard of", rank)
			}
			comm.Iprobe(mpi.AnySource, tagRequest)
		}
	}
	for mode, want := range map[Mode]string{Async: "ps 1 (rank 1", Sync: "worker 1 (rank 3"} {
		cfg := Config{Comm: comm, Cluster: Counts(2, 2), Mode: mode}
		for _, err := range []error{mpi.ErrRevoked, mpi.ErrPeerLost} {
			if got := cfg.Explain(ctx, "push", err); !strings.Contains(got.Error(), want) {
				t.Errorf("%s, %v: %v, want %q", mode, err, got, want)
			}
		}
	}
}

// What ps 0 answers to another server may be that the run has failed, or that it refuses: neither is its end.
func TestServerReadsAFailureOfTheFirst(t *testing.T) {
	worlds, err := mpi.Local(3, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []uint16{statusFailed, statusRefused} {
		cfg := oneTable(2, 1, 100, Sync)
		cfg.Comm = worlds[1].Comm()
		s, err := NewServer(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.asking = true
		const why = "worker 0 is gone, says ps 0"
		frame := append(aligned(headerBytes), why...)
		(&header{op: opReply, status: status, config: s.config, inline: uint32(len(why))}).encode(frame)
		s.receive(mpi.Status{Source: 0}, frame)
		if s.ended || s.failure == nil || !strings.Contains(s.failure.Error(), why) {
			t.Errorf("status %d: ended %v, failure %v", status, s.ended, s.failure)
		}
	}
}
