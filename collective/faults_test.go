package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

// A rank is killed inside each collective: every survivor gets ErrPeerLost,
// which names the rank, and further collectives refuse to start.
func TestEverySurvivorLearnsOfALoss(t *testing.T) {
	for name, op := range everyCall() {
		for _, at := range []struct {
			way string
			n   int
		}{{"messages", 1}, {"messages", 200_000}, {MemoryPlan, 1}, {MemoryPlan, 5000}, {MemoryPlan, 200_000}, {DirectPlan, 200_000}} {
			n := at.n
			if need.RaceDetector && n == 200_000 && at.way != "messages" { // copies, not goroutines that meet
				continue
			}
			t.Run(fmt.Sprintf("%s/%s/%d", name, at.way, n), func(t *testing.T) {
				size, victim := 5, 2
				if need.RaceDetector {
					size = 3
				}
				fabric := sim.New(sim.Config{Ranks: size})
				var entered sync.WaitGroup
				var survived sync.WaitGroup
				entered.Add(size - 1)
				survived.Add(size - 1)
				f := func(ctx context.Context, c *mpi.Comm) error {
					if err := Barrier(ctx, c); err != nil {
						return err
					}
					if c.Rank() == victim {
						entered.Wait()
						fabric.Kill(victim)
						return errKilled
					}
					// Nobody leaves while another still talks.
					defer func() { survived.Done(); survived.Wait() }()
					entered.Done()
					// A rank whose part does not need the victim may leave, but not for ever.
					var err error
					for v := onHeap(c, n); err == nil && ctx.Err() == nil; {
						err = op(ctx, c, v, n)
					}
					if err := within(err, mpi.ErrPeerLost); err != nil {
						return err
					}
					var at *mpi.Error
					if !errors.As(err, &at) || at.Peer != victim {
						return fmt.Errorf("%v does not name rank %d", err, victim)
					}
					err = Barrier(ctx, c)
					if !errors.Is(err, ErrBroken) || !errors.Is(err, mpi.ErrPeerLost) {
						return fmt.Errorf("afterwards: %v", err)
					}
					// The survivors go on without it.
					s, err := c.Shrink(ctx)
					if err != nil {
						return err
					}
					one := []int64{1}
					if err := Allreduce(ctx, s, one, one, Sum); err != nil {
						return err
					}
					return equal("survivors", one, []int64{int64(size - 1)})
				}
				var errs []error
				if o := (mpi.LocalOptions{Fabric: fabric}); at.way == "messages" {
					errs = onRanks(t, size, o, f)
				} else {
					errs = inShared(t, at.way, size, o, f)
				}
				for r, err := range errs {
					if err != nil && r != victim {
						t.Errorf("rank %d: %v", r, err)
					}
				}
			})
		}
	}
}

// One rank calls something else: all get ErrMismatch with who called what.
func TestMismatchNamesWhoCalledWhat(t *testing.T) {
	t.Parallel() // mostly waits
	small := func(n int, op Op) func(context.Context, *mpi.Comm) error {
		return func(ctx context.Context, c *mpi.Comm) error {
			return Allreduce(ctx, c, make([]int32, n), make([]int32, n), op)
		}
	}
	long := func(op Op) func(context.Context, *mpi.Comm) error { return small(50_000, op) }
	started := func(op Op) func(context.Context, *mpi.Comm) error {
		return func(ctx context.Context, c *mpi.Comm) error {
			return Iallreduce(c, make([]int32, 50_000), make([]int32, 50_000), op).Wait(ctx)
		}
	}
	allgather := func(ctx context.Context, c *mpi.Comm) error {
		return Allgather(ctx, c, make([]int32, 4), make([]int32, 4*c.Size()))
	}
	floats := func(ctx context.Context, c *mpi.Comm) error {
		return Allreduce(ctx, c, make([]float32, 4), make([]float32, 4), Sum)
	}
	barrier := func(ctx context.Context, c *mpi.Comm) error { return Barrier(ctx, c) }
	cases := []struct {
		name       string
		odd, other func(context.Context, *mpi.Comm) error
		config     Config
		want       []string
	}{
		{"count", small(5, Sum), small(4, Sum), Config{}, []string{"allreduce of 5 int32, sum", "allreduce of 4 int32, sum"}},
		{"operator", small(4, Max), small(4, Sum), Config{}, []string{"int32, max", "int32, sum"}},
		{"type", floats, small(4, Sum), Config{}, []string{"4 float32", "4 int32"}},
		{"collective", allgather, small(4, Sum), Config{}, []string{"allgather of 4 int32", "allreduce of 4 int32"}},
		{"barrier", barrier, small(4, Sum), Config{}, []string{"barrier", "allreduce"}},
		{"long against short", long(Sum), small(4, Sum), Config{}, []string{"rank"}},
		{"long, checked", long(Max), long(Sum), Config{CheckAll: true}, []string{"50000 int32, max", "50000 int32, sum"}},
		{"long, checked, nonblocking", started(Max), started(Sum), Config{CheckAll: true}, []string{"50000 int32, max", "50000 int32, sum"}},
		{"long with counts, checked", allgatherv[float32], allgatherv[int32], Config{CheckAll: true}, []string{"blocks of float32", "blocks of int32"}},
		{"bad arguments", func(ctx context.Context, c *mpi.Comm) error {
			if err := within(Allreduce(ctx, c, make([]int32, 4), make([]int32, 3), Sum), ErrArgument); err != nil {
				return err
			}
			return Barrier(ctx, c)
		}, small(4, Sum), Config{}, []string{"arguments that make no sense"}},
	}
	for _, k := range cases {
		for _, size := range []int{2, 5} {
			t.Run(fmt.Sprintf("%s/%d", k.name, size), func(t *testing.T) {
				errs := onRanks(t, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
					if err := Configure(c, k.config); err != nil {
						return err
					}
					return lastDiffers(k.odd, k.other, k.want)(ctx, c)
				})
				for r, err := range errs {
					if err != nil {
						t.Errorf("rank %d: %v", r, err)
					}
				}
			})
		}
	}
}

// allgatherv is of 2000 elements from each rank.
func allgatherv[T mpi.Elem](ctx context.Context, c *mpi.Comm) error {
	counts := slices.Repeat([]int{2000}, c.Size())
	return Allgatherv(ctx, c, make([]T, 2000), make([]T, 2000*c.Size()), counts)
}

// A rank whose call is rejected, the first on the communicator, and that comes to no other, answers those who wait for it;
// so does one whose call comes after they have asked, also where no stall is reported.
func TestRejectedRankAnswers(t *testing.T) {
	t.Parallel() // mostly waits
	rejectedRankAnswers(t, 0)
	rejectedRankAnswers(t, askAfter+2*slowTick)
}

func rejectedRankAnswers(t *testing.T, late time.Duration) {
	const size = 3
	var answered sync.WaitGroup
	answered.Add(size - 1)
	for r, err := range onRanks(t, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{StallAfter: -1}); err != nil {
			return err
		}
		if late > 0 { // so that it hears the question, before it calls what is asked for
			if err := Barrier(ctx, c); err != nil {
				return err
			}
		}
		if c.Rank() == size-1 {
			come := make(chan struct{})
			time.AfterFunc(late, func() { close(come) })
			<-come
			err := Allreduce(ctx, c, make([]int32, 4), make([]int32, 3), Sum)
			answered.Wait()
			return within(err, ErrArgument)
		}
		defer answered.Done()
		err := Allreduce(ctx, c, make([]int32, 4), make([]int32, 4), Sum)
		if !strings.Contains(fmt.Sprint(err), "arguments that make no sense") {
			return fmt.Errorf("%v does not say why", err)
		}
		return within(err, mpi.ErrMismatch)
	}) {
		if err != nil {
			t.Errorf("%v late: rank %d: %v", late, r, err)
		}
	}
}

// A short message with its call in front has as many bytes as a long one without: it is not taken for that.
func TestMismatchOfEqualBytes(t *testing.T) {
	const short, long = (signedBytes - 8) / 4, (signedBytes - 8 + signatureBytes) / 4
	calls := func(f func(ctx context.Context, c *mpi.Comm, n int) error) func(context.Context, *mpi.Comm) error {
		return func(ctx context.Context, c *mpi.Comm) error {
			n := long
			if c.Rank() == 0 {
				n = short
			}
			err := f(ctx, c, n)
			if err == nil {
				err = Barrier(ctx, c)
			}
			return within(err, mpi.ErrMismatch)
		}
	}
	for name, f := range map[string]func(context.Context, *mpi.Comm, int) error{
		"bcast": func(ctx context.Context, c *mpi.Comm, n int) error { return Bcast(ctx, c, make([]float32, n), 0) },
		"gather": func(ctx context.Context, c *mpi.Comm, n int) error {
			return Gather(ctx, c, make([]float32, n), make([]float32, 2*n), 1)
		},
		"allreduce": func(ctx context.Context, c *mpi.Comm, n int) error {
			return Allreduce(ctx, c, make([]float32, n), make([]float32, n), Sum)
		},
		"alltoallv": func(ctx context.Context, c *mpi.Comm, n int) error { // rank 1 expects more than rank 0 sends
			counts := []int{0, n}
			if c.Rank() == 1 {
				counts = []int{0, 0}
				return Alltoallv(ctx, c, make([]float32, 0), counts, make([]float32, n), []int{n, 0})
			}
			return Alltoallv(ctx, c, make([]float32, n), counts, make([]float32, 0), []int{0, 0})
		},
	} {
		t.Run(name, func(t *testing.T) { overTCP(t, 2, calls(f)) })
	}
}

// Each of two ranks takes itself for the root of a long bcast: both wait for the other to take it.
func TestMismatchOfSends(t *testing.T) {
	overTCP(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{Force: map[plan.Kind]string{plan.Bcast: "binomial"}}); err != nil {
			return err
		}
		return within(Bcast(ctx, c, make([]byte, 1<<20), c.Rank()), mpi.ErrMismatch)
	})
}

// A root that sends short messages to a rank that does not take them waits for it after some time,
// is seen to do so, and is told when that rank gives up.
func TestSenderIsToldOfGivingUp(t *testing.T) {
	t.Parallel() // mostly waits
	stalled := &lines{more: make(chan struct{}, 1)}
	overTCP(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{StallAfter: askAfter, Log: slog.New(slog.NewTextHandler(stalled, nil))}); err != nil {
			return err
		}
		if c.Rank() == 1 {
			select {
			case <-stalled.more:
			case <-ctx.Done():
				return errors.New("the root never waited")
			}
			if want := "on world waits for rank 1"; !strings.Contains(stalled.String(), want) {
				return fmt.Errorf("the report does not say %q: %s", want, stalled)
			}
			return within(Barrier(ctx, c), mpi.ErrMismatch)
		}
		var err error
		for v := make([]byte, 1<<10); err == nil; {
			err = Bcast(ctx, c, v, 0)
		}
		return within(err, mpi.ErrMismatch)
	})
}

// A rank that gives up tells the others, long before their own deadline, also where nothing is reported.
func TestGivingUpEndsItForAll(t *testing.T) {
	const size = 4
	for _, after := range []time.Duration{0, -1} {
		giveUp := oneGivesUp(size, 1)
		for r, err := range onRanks(t, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
			if err := Configure(c, Config{StallAfter: after}); err != nil {
				return err
			}
			return giveUp(ctx, c)
		}) {
			if err != nil {
				t.Errorf("StallAfter %d: rank %d: %v", after, r, err)
			}
		}
	}
}

// A call that gives up ends those of the rank's other goroutines, which no other rank comes to any more.
func TestGivingUpEndsOtherCalls(t *testing.T) {
	gone := make(chan struct{})
	for r, err := range onRanks(t, 2, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
		if c.Rank() == 1 {
			<-gone
			return nil
		}
		defer close(gone)
		s := stateOf(c)
		waits := func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.watch.active) == 0 {
				return false
			}
			x := s.watch.active[0]
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.peer == 1
		}
		first := make(chan error)
		go func() { first <- Barrier(ctx, c) }()
		for !waits() {
			runtime.Gosched()
		}
		over, cancel := context.WithCancel(ctx)
		cancel()
		if err := within(Barrier(over, c), context.Canceled); err != nil {
			return err
		}
		err := <-first
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("%v: the other call's context has ended, not this one's", err)
		}
		return within(err, mpi.ErrCancelled)
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// The same at the call with which a communicator gets its arena.
func TestGivingUpWhereTheArenaIsMade(t *testing.T) {
	const size = 3
	overSharedMemory(t, size, oneGivesUp(size, arenaAfter))
}

// oneGivesUp has rank 1 give up the barrier after so many, to which the last rank does not come.
func oneGivesUp(size, barriers int) func(context.Context, *mpi.Comm) error {
	var gone sync.WaitGroup
	gone.Add(size - 1)
	return func(ctx context.Context, c *mpi.Comm) error {
		for range barriers {
			if err := Barrier(ctx, c); err != nil {
				return err
			}
		}
		if c.Rank() == size-1 {
			gone.Wait()
			return nil
		}
		defer gone.Done()
		if c.Rank() == 1 {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			return within(Barrier(short, c), context.DeadlineExceeded)
		}
		err := Barrier(ctx, c)
		if !strings.Contains(fmt.Sprint(err), "rank 1") {
			return fmt.Errorf("%v does not name rank 1", err)
		}
		if err := within(err, mpi.ErrCancelled); err != nil {
			return err
		}
		return within(Barrier(ctx, c), ErrBroken)
	}
}

// lines collects log records.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A stall is reported with the rank that is waited for and what it does, also if that has called nothing yet.
func TestStallReport(t *testing.T) {
	log := &lines{more: make(chan struct{}, 1)}
	release := make(chan struct{})
	errs := onRanks(t, 2, mpi.LocalOptions{Host: threePerHost}, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{StallAfter: 1500 * time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil))}); err != nil {
			return err
		}
		if c.Rank() == 1 {
			Note(c, "ps.Push")
			<-release
		} else {
			go func() {
				defer close(release)
				for {
					select {
					case <-log.more:
						if strings.Contains(log.String(), "ps.Push") {
							return
						}
					case <-ctx.Done():
						return
					}
				}
			}()
		}
		one := []int32{1}
		return Allreduce(ctx, c, one, one, Sum)
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	for _, want := range []string{"allreduce #1 on world waits for rank 1 (host0)", "last seen in ps.Push", "TestStallReport"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, log)
		}
	}
}

func TestConfigureRefusesNonsense(t *testing.T) {
	together(t, 1, func(ctx context.Context, c *mpi.Comm) error {
		err := Configure(c, Config{Force: map[plan.Kind]string{plan.Bcast: "rign"}})
		if err := within(err, ErrArgument); err != nil {
			return err
		}
		if !strings.Contains(err.Error(), "rign") || !strings.Contains(err.Error(), "binomial") {
			return fmt.Errorf("%v does not name the plan and the known ones", err)
		}
		bad := DefaultModel(c)
		bad.Copy = plan.Curve{{Bytes: 8, Seconds: 1}, {Bytes: 8, Seconds: 2}}
		if Configure(c, Config{Model: bad}) == nil {
			return errors.New("a curve that does not ascend was accepted")
		}
		return nil
	})
}
