package ps

// Servers that stay when their workers are done (Config.Forever).

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// serveUntilLeft serves until so many workers have sent that they leave.
func serveUntilLeft(ctx context.Context, server *Server, workers int) error {
	serving, end := context.WithCancel(ctx)
	go func() {
		for range workers {
			mpi.Recv(ctx, server.comm, []byte{}, mpi.AnySource, FreeTag(server.comm)) // an error of it shows in Serve
		}
		end()
	}()
	_, err := server.Serve(serving)
	return err
}

// A worker that comes after one that gave up does not take the answer to that one's request for its own.
func TestForeverServesTheNextWorker(t *testing.T) {
	const n = 100
	cfg := oneTable(1, 1, n, Async)
	cfg.Forever = true
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mpitest.Together(t, worlds, func(ctx context.Context, c *mpi.Comm) error {
		cfg := cfg
		cfg.Comm = c
		if c.Rank() == 0 {
			server, err := NewServer(cfg)
			if err != nil {
				return err
			}
			return serveUntilLeft(ctx, server, 1)
		}
		defer mpi.Send(ctx, c, []byte{}, 0, FreeTag(c))
		values, ended := make([]float64, n), func() context.Context {
			ended, end := context.WithCancel(ctx)
			end()
			return ended
		}()
		w, err := NewWorker(cfg)
		if err != nil {
			return err
		}
		for range 2 { // so that the requests before the pull are as many as the next worker's
			if _, err := w.AddStep(ctx, 0); err != nil {
				return err
			}
		}
		if _, err := Pull(ctx, w, "w", values).Wait(ended); !errors.Is(err, context.Canceled) { // nobody has set the values
			return fmt.Errorf("a pull that was given up: %v", err)
		}
		if w, err = NewWorker(cfg); err != nil {
			return err
		}
		if _, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx); err != nil { // the server answers that pull now
			return err
		}
		if _, err := Push(ctx, w, "w", values, Contribution{}).Wait(ctx); err != nil {
			return err
		}
		a, err := Pull(ctx, w, "w", values).Wait(ctx)
		if err == nil && a.Version != 1 {
			err = fmt.Errorf("values of version %d after an update", a.Version)
		}
		return err
	})
}

// Nor does a later worker, when all request numbers have been used and begin again.
func TestForeverTakesNoOldAnswerForANewOne(t *testing.T) {
	const n, numbers = 10, tags(7)
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mpitest.Together(t, worlds, func(ctx context.Context, c *mpi.Comm) error {
		cfg := oneTable(1, 1, n, Async)
		cfg.Comm, cfg.Forever = c, true
		if c.Rank() == 0 {
			server, err := NewServer(cfg)
			if err != nil {
				return err
			}
			server.tags = numbers
			return serveUntilLeft(ctx, server, 1)
		}
		defer mpi.Send(ctx, c, []byte{}, 0, FreeTag(c))
		ended, end := context.WithCancel(ctx)
		end()
		values := make([]float64, n)
		for again := range 2 {
			w, err := NewWorker(cfg)
			if err != nil {
				return err
			}
			w.tags = numbers
			if again == 0 {
				if _, err := Pull(ctx, w, "w", values).Wait(ended); !errors.Is(err, context.Canceled) { // nobody has set the values
					return fmt.Errorf("a pull that was given up: %v", err)
				}
				continue
			}
			if _, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx); err != nil { // the server answers that pull now
				return err
			}
			for update := range int64(2 * numbers) {
				if _, err := Push(ctx, w, "w", values, Contribution{}).Wait(ctx); err != nil {
					return err
				}
				if a, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil || a.Version != update+1 {
					return fmt.Errorf("values of version %d after %d updates: %v", a.Version, update+1, err)
				}
			}
		}
		return nil
	})
}

// What a worker has given up takes no memory of the server's for good: an answer that nobody fetches ends with the worker's DONE.
func TestForeverKeepsNoAnswersOfWorkersThatAreDone(t *testing.T) {
	const n, rounds = 50_000, 3 * chunkBytes / (8 * 50_000) // values are sent apart
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mpitest.Together(t, worlds, func(ctx context.Context, c *mpi.Comm) error {
		cfg := oneTable(1, 1, n, Sync)
		cfg.Comm, cfg.Forever = c, true
		if c.Rank() == 0 {
			server, err := NewServer(cfg)
			if err != nil {
				return err
			}
			err = serveUntilLeft(ctx, server, 1)
			if got := len(server.store.alloc.chunks); err == nil && got > 1 {
				err = fmt.Errorf("%d chunks of memory for one block, its gradient and one answer at a time", got)
			}
			return err
		}
		defer mpi.Send(ctx, c, []byte{}, 0, FreeTag(c))
		ended, end := context.WithCancel(ctx)
		end()
		values := make([]float64, n)
		w, err := NewWorker(cfg)
		if err == nil {
			_, err = Set(ctx, w, "w", 0, values, 0).Wait(ctx)
		}
		for round := range int64(rounds) {
			if err != nil {
				return err
			}
			w.next[0][0] = round + 1 // of values that are there after the push
			if _, err := Pull(ctx, w, "w", values).Wait(ended); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("a pull that was given up: %v", err)
			}
			if w, err = NewWorker(cfg); err != nil {
				return err
			}
			w.next[0][0] = round
			if _, err = Push(ctx, w, "w", values, Contribution{}).Wait(ctx); err == nil {
				_, err = w.Finish(ctx, 0, 0)
			}
		}
		return err
	})
}

// A worker of a synchronous run that comes again while the step waits for another has its gradient in that step already:
// a second one is dropped, and it learns the values after the step. With backup workers, too, whose gates count
// the parts of several blocks.
func TestForeverTakesAWorkerThatComesAgain(t *testing.T) {
	for _, aggregate := range []int{0, 2} {
		t.Run(fmt.Sprintf("aggregate %d", aggregate), func(t *testing.T) {
			const n = 3 * 50 // in blocks of 50
			cfg := oneTable(1, 3, n, Sync)
			cfg.Forever, cfg.Aggregate, cfg.BlockBytes = true, aggregate, 50*8
			worlds, err := mpi.Local(4, mpi.LocalOptions{})
			if err != nil {
				t.Fatal(err)
			}
			come := make(chan struct{})
			again := sync.OnceFunc(func() { close(come) })
			var pulled sync.WaitGroup // of all workers, for the same step
			pulled.Add(3)
			mpitest.Together(t, worlds, func(ctx context.Context, c *mpi.Comm) error {
				cfg := cfg
				cfg.Comm = c
				if c.Rank() == 0 {
					server, err := NewServer(cfg)
					if err != nil {
						return err
					}
					return serveUntilLeft(ctx, server, 3)
				}
				defer mpi.Send(ctx, c, []byte{}, 0, FreeTag(c))
				w, err := NewWorker(cfg)
				if err != nil {
					return err
				}
				values, grad := make([]float64, n), slices.Repeat([]float64{1}, n)
				if w.Chief() {
					if _, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx); err != nil {
						return err
					}
				}
				if _, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil {
					return err
				}
				pulled.Done()
				pulled.Wait()
				if c.Rank() == 1 {
					defer again()
					if _, err := Push(ctx, w, "w", grad, Contribution{}).Wait(ctx); err != nil {
						return err
					}
					if w, err = NewWorker(cfg); err != nil {
						return err
					}
					if _, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil {
						return err
					}
					second := PushPull(ctx, w, "w", grad, values, Contribution{})
					again()
					a, err := second.Wait(ctx)
					if err != nil || a.Version != 1 || !a.Dropped {
						err = fmt.Errorf("a second gradient for the step: %+v, %v", a, err)
					}
					return err
				}
				<-come
				_, err = PushPull(ctx, w, "w", grad, values, Contribution{}).Wait(ctx)
				return err
			})
		})
	}
}

func TestForeverServesUntilItIsTold(t *testing.T) {
	cfg := oneTable(1, 2, 100, Async)
	cfg.Forever = true
	worlds, err := mpi.Local(3, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for rank := 1; rank < 3; rank++ {
		all.Go(func() {
			c := cfg
			c.Comm = worlds[rank].Comm()
			w, err := NewWorker(c)
			if err == nil {
				err = train(ctx, w, 100, 5, nil)
			}
			if err == nil {
				_, err = w.Finish(ctx, 0, 1)
			}
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	ended := make(chan error, 1)
	go func() {
		c := cfg
		c.Comm = worlds[0].Comm()
		server, err := NewServer(c)
		if err == nil {
			_, err = server.Serve(ctx)
		}
		ended <- err
	}()
	all.Wait()
	select {
	case err := <-ended:
		t.Fatalf("the server ended by itself: %v", err)
	default:
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("%v", err)
	}
	for _, w := range worlds {
		go w.Close(context.Background())
	}
}

// A server that is to stay does so when all workers have been there and one of them has ended.
func TestForeverOutlivesWorkersThatAreDone(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		cfg := oneTable(1, 2, 100, Async)
		cfg.Forever = true
		done := make(chan struct{})
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			if w.Index() == 1 {
				_, err := w.Finish(ctx, 0, 1)
				<-done
				return errors.Join(err, errDead)
			}
			for range 2 { // it comes again
				if _, err := w.AddStep(ctx, 1); err != nil {
					return err
				}
				if _, err := w.Finish(ctx, 0, 1); err != nil {
					return err
				}
			}
			close(done)
			for len(w.comm.Lost()) == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
				w.comm.Iprobe(0, tagRequest)
			}
			if a, err := w.AddStep(ctx, 1); err != nil || a != 3 {
				return fmt.Errorf("the third visit: step %d, %w", a, err)
			}
			return nil
		})
		s.fine(2)
		if strings.Contains(s.log.String(), "done 3 of 2") {
			t.Errorf("a worker that comes again counts again:\n%s", s.log)
		}
	})
}

// In Sync mode updates wait for a worker that is done, since it may come again, until it is lost.
func TestForeverWaitsForNobodyWhoIsLost(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		const n = 100
		cfg := oneTable(1, 2, n, Sync)
		cfg.Forever = true
		over := make(chan struct{})
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			if w.Index() == 1 {
				<-over
				_, err := w.Finish(ctx, 0, 1)
				return errors.Join(err, errDead)
			}
			values, grad := make([]float64, n), slices.Repeat([]float64{1}, n)
			if _, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx); err != nil {
				return err
			}
			close(over)
			_, err := PushPull(ctx, w, "w", grad, values, Contribution{}).Wait(ctx)
			if err == nil && values[0] == 0 {
				err = errors.New("the gradient has not been used")
			}
			return err
		})
		s.fine(2)
	})
}

// A worker that has given a barrier up, ended and come again has not come to the next barrier by that.
func TestForeverForgetsABarrierThatWasGivenUp(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		cfg := oneTable(1, 2, 100, Async)
		cfg.Forever = true
		again, over := make(chan struct{}), make(chan struct{})
		alone := func(ctx context.Context, w *Worker) error {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := w.Barrier(short); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("a barrier without the other worker: %v", err)
			}
			return nil
		}
		s := play(t, cfg, func(ctx context.Context, w *Worker) error {
			if w.Index() == 0 {
				<-again
				defer close(over)
				return alone(ctx, w)
			}
			err := alone(ctx, w)
			if err == nil {
				_, err = w.Finish(ctx, 0, 0)
			}
			if err == nil {
				_, err = w.AddStep(ctx, 1)
			}
			close(again)
			<-over
			return err
		})
		s.fine()
	})
}
