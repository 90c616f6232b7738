package ps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/testlog"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

// patience bounds what a run of these tests may take, on any machine.
const patience = 3 * time.Minute

// stage is a parameter server whose ranks are goroutines over the simulated
// fabric.
type stage struct {
	t      *testing.T
	fabric *sim.Fabric
	cfg    Config
	log    *testlog.Buffer

	servers   []*Server
	summaries []Summary
	errs      []error // by rank
	lost      [][]int // what Finish returned, by rank
	closed    []error // by rank
}

// actor is what a worker does. It returns nil when it has called Finish itself
// or wants that done for it.
type actor func(ctx context.Context, w *Worker) error

// play runs servers and workers to their end. A rank whose actor returns
// errDead dies as if its process had been killed.
func play(t *testing.T, cfg Config, act actor) *stage {
	t.Helper()
	return stagePlay(t, cfg, make(chan *stage, 1), act)
}

// stagePlay is play for actors that look at the stage: it is put on ready once
// the servers exist.
func stagePlay(t *testing.T, cfg Config, ready chan *stage, act actor) *stage {
	t.Helper()
	s := &stage{t: t, cfg: cfg, log: &testlog.Buffer{}}
	n := len(cfg.Cluster.Servers) + len(cfg.Cluster.Workers)
	s.fabric = sim.New(sim.Config{Ranks: n})
	worlds, err := mpi.Local(n, mpi.LocalOptions{Fabric: s.fabric, Host: func(r int) string { return fmt.Sprintf("n%d", r) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.servers = make([]*Server, n)
	s.summaries, s.errs, s.lost, s.closed = make([]Summary, n), make([]error, n), make([][]int, n), make([]error, n)
	configFor := func(rank int) Config {
		c := cfg
		c.Comm = worlds[rank].Comm()
		c.Log = slog.New(slog.NewTextHandler(s.log, nil))
		return c
	}
	for _, rank := range cfg.Cluster.Servers {
		s.servers[rank], s.errs[rank] = NewServer(configFor(rank))
	}
	ready <- s
	parting := mpitest.NewParting(patience)
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			defer func() { s.closed[rank] = parting.Close(worlds[rank], s.errs[rank]) }()
			if slices.Contains(cfg.Cluster.Servers, rank) {
				if s.errs[rank] == nil {
					s.summaries[rank], s.errs[rank] = s.servers[rank].Serve(ctx)
				}
				return
			}
			w, err := NewWorker(configFor(rank))
			if err != nil {
				s.errs[rank] = err
				return
			}
			if err := act(ctx, w); err != nil {
				if errors.Is(err, errDead) {
					s.fabric.Kill(rank)
				}
				s.errs[rank] = err
				return
			}
			if w.err != errFinished {
				s.lost[rank], s.errs[rank] = w.Finish(ctx, 0, 1)
			}
		})
	}
	all.Wait()
	return s
}

var errDead = errors.New("killed by the test")

// fine fails the test for every rank that did not end well.
func (s *stage) fine(except ...int) {
	s.t.Helper()
	for rank, err := range s.errs {
		if err != nil && !slices.Contains(except, rank) {
			s.t.Errorf("rank %d (%s): %v", rank, s.cfg.Cluster.Role(rank), err)
		}
	}
	if len(except) == 0 { // else a goodbye may be waited for in vain
		for rank, err := range s.closed {
			if err != nil {
				s.t.Errorf("rank %d (%s) closes: %v", rank, s.cfg.Cluster.Role(rank), err)
			}
		}
	}
	if s.t.Failed() {
		s.t.Logf("log:\n%s", s.log)
	}
}

func sequence[F Float](n int, from, by float64) []F {
	v := make([]F, n)
	for i := range v {
		v[i] = F(from + by*float64(i))
	}
	return v
}

// Every worker pushes the same constant gradient; the sums are known.
func TestPushPullOverSizesServersAndTypes(t *testing.T) {
	for _, servers := range []int{1, 2, 3} {
		for _, n := range []int{1, 255, 257, 5000, 100_000} {
			for _, mode := range []Mode{Async, Sync} {
				t.Run(fmt.Sprintf("%d ps/%d elements/%s", servers, n, mode), func(t *testing.T) {
					pushPull[float64](t, servers, n, mode)
					pushPull[float32](t, servers, n, mode)
				})
			}
		}
	}
}

func pushPull[F Float](t *testing.T, servers, n int, mode Mode) {
	const workers, steps = 3, 4
	cfg := Config{Cluster: Counts(servers, workers), Mode: mode, Rule: Rule{Rate: 0.5}, BlockBytes: 64 << 10, Window: 3,
		Tables: []Table{{"bias", 3, TypeOf[F]()}, {"w", n, TypeOf[F]()}}}
	finals := make([][]F, workers)
	s := play(t, cfg, func(ctx context.Context, w *Worker) error {
		if w.Chief() {
			for _, table := range []struct {
				name string
				v    []F
			}{{"bias", make([]F, 3)}, {"w", sequence[F](n, 1, 1)}} {
				if _, err := Set(ctx, w, table.name, 0, table.v, 0).Wait(ctx); err != nil {
					return err
				}
			}
		}
		values, grad := make([]F, n), sequence[F](n, float64(1+w.Index()), 0)
		if _, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil {
			return err
		}
		for range steps {
			if _, err := PushPull(ctx, w, "w", grad, values, Contribution{CountStep: true}).Wait(ctx); err != nil {
				return err
			}
		}
		if _, err := w.Barrier(ctx); err != nil {
			return err
		}
		if _, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil {
			return err
		}
		finals[w.Index()] = values
		return nil
	})
	s.fine()
	// Async: 4 pushes of 1, 2 and 3 each at rate 0.5. Sync: the mean of them.
	drop, step := F(0.5*steps*(1+2+3)), int64(steps*workers)
	if mode == Sync {
		drop, step = 0.5*steps*2, steps
	}
	for w, values := range finals {
		for i, v := range values {
			if want := F(1+i) - drop; v != want {
				t.Fatalf("worker %d element %d: %v, want %v", w, i, v, want)
			}
		}
	}
	if got := s.summaries[0].GlobalStep; got != step {
		t.Errorf("global step %d, want %d", got, step)
	}
}

func TestDoneIsLoggedByIndexAndRank(t *testing.T) {
	for _, c := range []Cluster{Counts(1, 3), Counts(2, 6), Counts(1, 1), {Servers: []int{2}, Workers: []int{1, 0}}} {
		cfg := Config{Cluster: c, Tables: []Table{{"w", 4, Float32}}, Rule: Rule{Rate: 1}}
		s := play(t, cfg, func(context.Context, *Worker) error { return nil })
		s.fine()
		log := s.log.String()
		for i := range c.Servers {
			for k, rank := range c.Workers {
				from := fmt.Sprintf("of %d from rank %d (worker %d)\"", len(c.Workers), rank, k)
				if n := strings.Count(log, from); n != len(c.Servers) {
					t.Errorf("%d times %q, want %d\n%s", n, from, len(c.Servers), log)
				}
			}
			for j := range c.Workers {
				line := fmt.Sprintf("ps %d received done %d of %d from rank ", i, j+1, len(c.Workers))
				if n := strings.Count(log, line); n != 1 {
					t.Errorf("%d times %q\n%s", n, line, log)
				}
			}
		}
	}
}
