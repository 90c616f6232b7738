package ps

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
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

// Who waits at a barrier hears also of a worker that failed by itself: nobody does that one's part. One that ended well has.
func TestBarrierNamesWorkersThatFailed(t *testing.T) {
	ended := errors.New("the worker has finished")
	for status, want := range map[int][]int{0: nil, 7: {3}} {
		s := play(t, Config{Cluster: Counts(1, 3), Rule: Rule{Rate: 1}}, func(ctx context.Context, w *Worker) error {
			if w.Index() == 2 {
				lost, err := w.Finish(ctx, status, 0)
				if len(lost) > 0 {
					t.Errorf("status %d: at the end %v are lost", status, lost)
				}
				return errors.Join(err, ended)
			}
			lost, err := w.Barrier(ctx)
			if !slices.Equal(lost, want) {
				t.Errorf("status %d: worker %d hears of %v, want %v", status, w.Index(), lost, want)
			}
			return err
		})
		s.fine(3)
	}
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
