package ps

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// inParts is PushPull of the table "w" whose parts travel one after the other, in an order of the blocks: when the first
// is answered, between is called.
func inParts(ctx context.Context, w *Worker, grad, values []float64, order []int, between func() error) (Answer, error) {
	blocks := w.shards.blocks[0]
	f := &Future{w: w, op: opPushPull, version: -1, blocks: blocks, dst: mpi.Bytes(values), versions: make([]int64, len(blocks))}
	for k, i := range order {
		b := &blocks[i]
		h := header{op: opPushPull, version: w.next[0][i], weight: 1}
		if i == 0 {
			h.flags = flagStep
		}
		err := w.issue(ctx, f, b.server, b, h, mpi.Bytes(grad[b.begin:b.end]), mpi.Bytes(values[b.begin:b.end]))
		if err == nil {
			err = f.parts[k].finish(ctx)
		}
		if k == 0 && err == nil {
			err = between()
		}
		if err != nil {
			return Answer{}, err
		}
	}
	return f.Wait(ctx)
}

// A backup worker that is late hears of another version with each part of its gradient, because the others make a step
// between them. What they do then, three of them or two, ends all the same.
func TestLateWorkerGoesOn(t *testing.T) {
	for _, n := range lengths {
		for _, servers := range []int{1, 2} {
			for _, order := range [][]int{{0, 1}, {1, 0}} {
				for what, c := range map[string]struct {
					before, between, after int64 // steps of the others before and between the late worker's parts, and of those that are left
					interrupt              bool
				}{
					"trains on with one other": {before: 1, between: 1, after: 5},
					"ends with the others":     {before: 9, between: 1},
					"is told to stop":          {before: 1, between: 1, interrupt: true},
				} {
					t.Run(fmt.Sprintf("%d elements/%d ps/first block %d/%s", n, servers, order[0], what), func(t *testing.T) {
						mpitest.InBubble(t, func(t *testing.T) {
							lateWorker(t, n, servers, order, c.before, c.between, c.after, c.interrupt)
						})
					})
				}
			}
		}
	}
}

func lateWorker(t *testing.T, n, servers int, order []int, before, between, after int64, interrupt bool) {
	cfg := oneTable(servers, 3, n, Sync)
	cfg.Aggregate, cfg.Deadline, cfg.BlockBytes = 2, 100*time.Millisecond, 8*((n/2+blockAlign)/blockAlign*blockAlign) // two blocks
	pulled, late, made := make(chan struct{}), make(chan struct{}), make(chan struct{})
	again, over := make(chan struct{}), make(chan struct{})
	var left, ends atomic.Int32
	left.Store(2)
	ready := make(chan *stage, 1)
	var st atomic.Pointer[stage]
	s := stagePlay(t, cfg, ready, func(ctx context.Context, w *Worker) error {
		if w.Chief() {
			st.Store(<-ready)
		}
		grad, values := sequence[float64](n, 1, 0), make([]float64, n)
		a, err := setAndPull(ctx, w, values)
		if err != nil {
			return err
		}
		until := func(version int64) error {
			for a.Version < version && !w.Stopped() {
				if a, err = PushPull(ctx, w, "w", grad, values, Contribution{CountStep: true}).Wait(ctx); err != nil {
					return err
				}
				if values[0] != values[n-1] || values[0] != -float64(a.Version) {
					return fmt.Errorf("values from %v to %v at version %d", values[0], values[n-1], a.Version)
				}
			}
			return nil
		}
		if w.Index() == 2 {
			close(pulled)
			<-late
			a, err = inParts(ctx, w, grad, values, order, func() error { close(again); <-made; return nil })
			if err == nil && (a.Version != before+between || values[0] != values[n-1]) {
				err = fmt.Errorf("late worker: version %d, values from %v to %v", a.Version, values[0], values[n-1])
			}
		} else {
			<-pulled
			if err = until(before); err == nil && left.Add(-1) == 0 {
				left.Store(2)
				if interrupt {
					st.Load().servers[0].Interrupt()
				}
				close(late)
			}
			<-again
			if err == nil {
				err = until(before + between)
			}
			if err == nil && left.Add(-1) == 0 {
				close(made)
			}
		}
		if err != nil {
			return err
		}
		if w.Stopped() != interrupt {
			return errors.New("the worker goes on, or stops, against the wish")
		}
		if w.Index() == 1 {
			if after > 0 {
				select {
				case <-over:
				case <-ctx.Done():
				}
			}
		} else if err = until(before + between + after); err == nil && ends.Add(1) == 2 {
			close(over)
		}
		if err == nil {
			_, err = w.Barrier(ctx)
		}
		return err
	})
	s.fine()
}

// All parts of a gradient are on their way before the first is answered, however many they are.
func TestBackupWorkersWithMoreBlocksThanTheWindow(t *testing.T) {
	for _, servers := range []int{1, 2} {
		mpitest.InBubble(t, func(t *testing.T) {
			const n = 64 * blockAlign
			cfg := oneTable(servers, 3, n, Sync)
			cfg.Aggregate, cfg.Window, cfg.BlockBytes, cfg.Deadline = 2, 4, 8*blockAlign, 100*time.Millisecond
			s := play(t, cfg, func(ctx context.Context, w *Worker) error {
				values := make([]float64, n)
				a, err := setAndPull(ctx, w, values)
				for err == nil && a.Version < 5 {
					a, err = PushPull(ctx, w, "w", sequence[float64](n, 1, 0), values, Contribution{}).Wait(ctx)
				}
				return err
			})
			s.fine()
		})
	}
}

// All parts of a gradient are for one update, also where older requests are finished between them to make room, and their
// answers say that the servers are further.
func TestPartsOfAGradientAreForOneUpdate(t *testing.T) {
	const n = 2 * blockAlign
	worlds, err := mpi.Local(3, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := oneTable(1, 2, n, Sync)
	cfg.Aggregate, cfg.BlockBytes, cfg.Window = 1, 8*blockAlign, 3
	mpitest.Together(t, worlds, func(ctx context.Context, c *mpi.Comm) error {
		cfg := cfg
		cfg.Comm = c
		tags := tagsOf(c)
		switch c.Rank() {
		case 0: // it drops all gradients, and makes an update after each part
			frame := aligned(frameBytes)
			first := make([]int64, 3) // of each gradient
			for k := range 6 {
				status, err := mpi.Recv(ctx, c, frame, 1, tagRequest)
				if err != nil {
					return err
				}
				var h header
				if _, err := h.decode(frame[:status.Bytes]); err != nil {
					return err
				}
				if h.block == 0 {
					first[k/2] = h.version
				} else if h.version != first[k/2] {
					return fmt.Errorf("gradient %d: block 0 is for update %d, block 1 for %d", k/2, first[k/2], h.version)
				}
				h = header{op: opReply, flags: flagDropped, table: h.table, block: h.block, seq: h.seq, version: int64(5 + k)}
				reply := aligned(headerBytes)
				h.encode(reply)
				if err := mpi.Send(ctx, c, reply, 1, tags.reply(h.seq)); err != nil {
					return err
				}
			}
		case 1:
			w, err := NewWorker(cfg)
			if err != nil {
				return err
			}
			var pushed []*Future
			for range 3 {
				pushed = append(pushed, Push(ctx, w, "w", make([]float64, n), Contribution{}))
			}
			for _, f := range pushed {
				if _, err := f.Wait(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
