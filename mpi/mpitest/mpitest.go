// Package mpitest runs ranks as goroutines of a test, over the simulated
// fabric, and holds what every communicator must do, whatever it stands on.
//
//	mpitest.Run(t, 4, func(ctx context.Context, c *mpi.Comm) error { … })
//
// Conformance, Losses and Soak take a Runner, so that one set of checks serves
// worlds over the simulated fabric, shared memory, TCP, and the system's MPI
// library. A check never passes anything from rank to rank but messages: a
// Runner may have each rank in a process of its own.
package mpitest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

// Runner runs f on n ranks, with a context that ends when the ranks have taken
// too long, and fails the test with the error of each.
type Runner func(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm) error)

// KillRunner is a Runner that hands each rank a function that ends it as
// kill -9 does. The rank returns after calling it.
type KillRunner func(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm, die func()) error)

// Option changes how Run runs.
type Option func(*options)

type options struct {
	config  sim.Config
	fabric  *sim.Fabric
	local   mpi.LocalOptions
	timeout time.Duration
	stay    bool // no rank says goodbye before all have returned
}

// Delay has every message travel for a random time of at most d. Without it d
// is 100 µs.
func Delay(d time.Duration) Option { return func(o *options) { o.config.MaxDelay = d } }

// Seed determines the delays. Without it a seed is drawn; it is printed either way.
func Seed(seed uint64) Option { return func(o *options) { o.config.Seed = seed } }

// Pull lets ranks read each other's memory, as on one host.
func Pull() Option { return func(o *options) { o.local.Pull = true } }

// PerHost puts the ranks on hosts n0, n1, …, so many on each. Without it all
// are on one.
func PerHost(ranks int) Option {
	return func(o *options) {
		o.local.Host = func(rank int) string { return fmt.Sprintf("n%d", rank/ranks) }
	}
}

// Timeout is when the context ends. Without it that is after three minutes, or five with LargeVariable.
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// Over runs on the given fabric, so that the test can cut links and kill ranks.
func Over(f *sim.Fabric) Option { return func(o *options) { o.fabric = f } }

// Virtual runs in virtual time. The ranks must not start goroutines that
// communicate.
func Virtual(n *sim.Network) Option { return func(o *options) { o.config.Network = n } }

// SizesOnly carries the lengths of messages only, in virtual time: ranks may
// share buffers, and received contents mean nothing.
func SizesOnly() Option { return func(o *options) { o.config.SizesOnly = true } }

var errAnother = errors.New("another rank failed")

// Run runs f on n ranks, each a goroutine, over a simulated fabric, and fails
// the test with the error of each rank. The context of all ends as soon as one has failed.
func Run(t testing.TB, n int, f func(ctx context.Context, c *mpi.Comm) error, opts ...Option) {
	t.Helper()
	o := options{timeout: patience(), config: sim.Config{Ranks: n, MaxDelay: 100 * time.Microsecond}}
	for _, opt := range opts {
		opt(&o)
	}
	if o.fabric == nil {
		o.fabric = sim.New(o.config)
	}
	virtual := o.fabric.Virtual()
	o.local.Fabric, o.local.Still = o.fabric, virtual
	worlds, err := mpi.Local(n, o.local)
	if err != nil {
		t.Fatal(err)
	}
	timed, stop := context.WithTimeout(t.Context(), o.timeout)
	defer stop()
	ctx, cancel := context.WithCancelCause(timed)
	defer cancel(nil)

	errs := make([]error, n)
	var busy sync.WaitGroup
	busy.Add(n)
	rank := func(r int) {
		errs[r] = f(ctx, worlds[r].Comm())
		if errs[r] != nil {
			cancel(fmt.Errorf("%w: rank %d: %w", errAnother, r, errs[r]))
		}
		if busy.Done(); o.stay {
			busy.Wait()
		}
		if virtual || errs[r] != nil || o.fabric.Killed(r) {
			// Closed below. A failed rank stays, so that the others say what is wrong
			// with them and not that it left; a dead one says no goodbye.
			return
		}
		// Where another has failed, this one waits in vain for its goodbye, and the other is to blame.
		if err := closeWorld(ctx, worlds[r]); err != nil && !errors.Is(context.Cause(ctx), errAnother) {
			errs[r] = fmt.Errorf("close: %w", err)
		}
	}
	var ran error
	if virtual {
		ran = o.fabric.Run(ctx, rank)
	} else {
		var all sync.WaitGroup
		for r := range n {
			all.Go(func() { rank(r) })
		}
		all.Wait()
	}
	for r, w := range worlds {
		if !virtual && errs[r] == nil && !o.fabric.Killed(r) {
			continue
		}
		if err := closeWorld(ctx, w); err != nil && errs[r] == nil && !o.fabric.Killed(r) {
			t.Errorf("rank %d: close: %v", r, err)
		}
	}
	shown := false
	for r, err := range errs {
		if err != nil && !errors.Is(err, errAnother) {
			t.Errorf("rank %d: %v", r, err)
			shown = true
		}
	}
	if ran != nil {
		t.Errorf("simulation: %v", ran)
	}
	if shown || ran != nil {
		t.Logf("seed %d", o.fabric.Seed())
		t.FailNow()
	}
}

// Simulated is a Runner over the simulated fabric.
func Simulated(opts ...Option) Runner {
	return func(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm) error) {
		t.Helper()
		Run(t, n, f, opts...)
	}
}

// SimulatedKill is a KillRunner over the simulated fabric, whose ranks are on a
// host each. A loss is noticed after a millisecond.
func SimulatedKill(more ...Option) KillRunner {
	return func(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm, die func()) error) {
		t.Helper()
		fabric := sim.New(sim.Config{Ranks: n, MaxDelay: 100 * time.Microsecond, DetectAfter: time.Millisecond})
		opts := append([]Option{Over(fabric), PerHost(1), func(o *options) { o.stay = true }}, more...)
		Run(t, n, func(ctx context.Context, c *mpi.Comm) error {
			return f(ctx, c, func() { fabric.Kill(c.WorldRank(c.Rank())) })
		}, opts...)
	}
}
