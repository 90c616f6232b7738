package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// program is what a rank runs.
type program func(ctx context.Context, c *mpi.Comm) error

// besides runs an honest rank beside one that corrupts, and gives the honest one's error, which ends both.
func besides(t *testing.T, corrupts int, honest, corrupt program) error {
	t.Helper()
	var found error
	both, end := context.WithTimeout(t.Context(), 2*time.Minute)
	defer end()
	mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 2), func(ctx context.Context, c *mpi.Comm) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(both, cancel)()
		if c.Rank() == corrupts {
			if err := corrupt(ctx, c); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrWrong) {
				return err
			}
			return nil
		}
		defer end()
		found = honest(ctx, c)
		return nil
	})
	return found
}

// One wrong byte, the last, of what a rank sends is found by the one that gets it.
func TestMessagesFindAWrongByte(t *testing.T) {
	const size, at = 40000, 39999
	for _, k := range []struct {
		op       string
		corrupts []int
	}{{"latency", []int{0, 1}}, {"fresh", []int{0, 1}}, {"bw", []int{0}}, {"mbw_mr", []int{0}}, {"bibw", []int{0, 1}}, {"pairs", []int{0, 1}}} {
		for _, corrupts := range k.corrupts {
			for _, wrong := range []byte{0, 1} { // the bits that are wrong; none: nothing is found
				err := besides(t, corrupts, func(ctx context.Context, c *mpi.Comm) error {
					if wrong == 0 {
						m := newMessages(c, size)
						return errors.Join(m.verify(ctx, k.op), barrier(ctx, c))
					}
					return Messages(ctx, c, k.op, Options{Sizes: []int{size}}, func(Row) {})
				}, func(ctx context.Context, c *mpi.Comm) error {
					m := newMessages(c, size)
					m.fill()
					m.send[at] ^= wrong
					m.made[at] ^= wrong
					return errors.Join(barrier(ctx, c), m.exchange(ctx, k.op), barrier(ctx, c), barrier(ctx, c))
				})
				if wrong == 0 && err != nil {
					t.Errorf("%s: nothing is wrong, and it says %v", k.op, err)
				}
				if wrong != 0 && (!errors.Is(err, ErrWrong) || !strings.Contains(err.Error(), "byte 39999 of 40000")) {
					t.Errorf("%s: rank %d corrupts a byte, and the other says %v", k.op, corrupts, err)
				}
			}
		}
	}
}

// More messages in flight than there are of anybody's are refused, not made room for.
func TestWindowIsBounded(t *testing.T) {
	mpitest.Run(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		for _, n := range []int{MaxWindow + 1, math.MaxInt / 2} {
			if err := Messages(ctx, c, "bw", Options{Sizes: []int{8}, Window: n}, func(Row) {}); !errors.Is(err, ErrUsage) {
				return fmt.Errorf("%d: %w", n, err)
			}
		}
		return nil
	})
}

// What Check refuses of a collective, Run does, too.
func TestCollectivesRefuseSizes(t *testing.T) {
	for name, o := range map[string]Options{"barrier": {Sizes: []int{0, 8}}, "allreduce": {Sizes: []int{8, 6}}} {
		op := operation(t, name)
		if err := op.Check(2, o); !errors.Is(err, ErrUsage) {
			t.Errorf("%s of %d bytes: Check says %v", name, o.Sizes, err)
		}
		mpitest.Run(t, 2, func(ctx context.Context, c *mpi.Comm) error {
			if err := op.Run(ctx, c, o, func(Row) {}); !errors.Is(err, ErrUsage) {
				return fmt.Errorf("%s of %d bytes: Run says %v", name, o.Sizes, err)
			}
			return nil
		})
	}
}

func newMessages(c *mpi.Comm, size int) *messages {
	return &messages{c: c, window: defaultWindow, send: make([]byte, size), recv: make([]byte, size),
		made: make([]byte, size), used: make([]byte, size), requests: make([]mpi.Request, 2*defaultWindow), answer: make([]byte, 4)}
}

func TestOneSidedFindsAWrongByte(t *testing.T) {
	const size, at = 40000, 39999
	for op, corrupts := range map[string]int{"put": 0, "get": 1} {
		err := besides(t, corrupts, func(ctx context.Context, c *mpi.Comm) error {
			return oneSided(ctx, c, op, Options{Sizes: []int{size}}, func(Row) {})
		}, func(ctx context.Context, c *mpi.Comm) error {
			s := &side{c: c, shared: make([]byte, size), local: make([]byte, size), op: op}
			var err error
			if s.w, err = mpi.NewWindow(ctx, c, s.shared); err != nil {
				return err
			}
			s.fill()
			s.local[at] ^= 1
			s.shared[at] ^= 1
			return errors.Join(s.move(ctx), barrier(ctx, c))
		})
		if !errors.Is(err, ErrWrong) || !strings.Contains(err.Error(), "byte 39999 of 40000") {
			t.Errorf("%s: rank %d corrupts a byte, and the other says %v", op, corrupts, err)
		}
	}
}

// The last element that one rank contributes is wrong, and another has the result.
func TestCollectivesFindAWrongElement(t *testing.T) {
	const size = 40000
	for _, op := range collectiveOps() {
		if op.name == "barrier" { // has no result
			continue
		}
		corrupts := 0
		if op.name == "reduce" || op.name == "gather" { // rank 0 has the result
			corrupts = 1
		}
		err := besides(t, corrupts, func(ctx context.Context, c *mpi.Comm) error {
			return measureCollective(ctx, c, op, shared{}, Options{Sizes: []int{size}}, func(Row) {})
		}, func(ctx context.Context, c *mpi.Comm) error {
			return measureCollective(ctx, c, corrupted(op, 1), shared{}, Options{Sizes: []int{size}}, func(Row) {})
		})
		if !errors.Is(err, ErrWrong) {
			t.Errorf("%s: rank %d corrupts an element, and the other says %v", op.name, corrupts, err)
		}
	}
}

// inMemory is op with a wrong last element where it goes through shared memory, and only there.
func inMemory(t *testing.T, op collectiveOp, bytes int) collectiveOp {
	t.Helper()
	kind, err := plan.ParseKind(op.name)
	if err != nil {
		t.Fatal(err)
	}
	call := op.call
	op.call = func(v *vectors, ctx context.Context) error {
		if collective.Explain(kind, op.total(bytes, v.c.Size()), v.c).Plan == collective.MemoryPlan {
			v.send[len(v.send)-1]++
		}
		return call(v, ctx)
	}
	return op
}

// What is wrong only where ranks meet in shared memory is found by who measures a collective, and by who measures its plans.
func TestWrongInSharedMemoryOnly(t *testing.T) {
	const size = 8
	o := Options{Sizes: []int{size}, Iterations: 2, Skip: -1, Repetition: 100 * time.Microsecond}
	op, _ := collectiveNamed("allreduce")
	for way, want := range map[string]error{collective.MemoryPlan: ErrWrong, "doubling": nil} {
		measured := func(op collectiveOp) program {
			return func(ctx context.Context, c *mpi.Comm) error {
				f := collective.ConfigOf(c)
				f.Force = map[plan.Kind]string{plan.Allreduce: way}
				if err := collective.Configure(c, f); err != nil {
					return err
				}
				return measureCollective(ctx, c, op, heap{}, o, func(Row) {})
			}
		}
		if err := besides(t, 0, measured(op), measured(inMemory(t, op, size))); !errors.Is(err, want) {
			t.Errorf("measured by %s: %v, want %v", way, err, want)
		}
	}
	o = Options{Sizes: []int{size}, Budget: 2 * time.Millisecond}
	err := besides(t, 0, func(ctx context.Context, c *mpi.Comm) error {
		_, err := Tune(ctx, c, collective.DefaultModel(c), []string{op.name}, o)
		return err
	}, func(ctx context.Context, c *mpi.Comm) error {
		points, err := newPoints(ctx, c, collective.DefaultModel(c), []string{op.name}, o.Sizes)
		if err != nil {
			return err
		}
		points[0].op = inMemory(t, op, size)
		at, err := newPlace(ctx, c, o.Budget/tunePasses)
		if err != nil {
			return err
		}
		return measurePoints(ctx, c, at, points, o, func() error { return nil })
	})
	if !errors.Is(err, ErrWrong) || !strings.Contains(err.Error(), "by "+collective.MemoryPlan) {
		t.Errorf("tuned: %v, want %v", err, ErrWrong)
	}
}

// So does who measures what prices shared memory, although all messages are right.
func TestModelFindsWhatIsWrongInSharedMemory(t *testing.T) {
	const size = 8
	measured := func(wrong bool) program {
		return func(ctx context.Context, c *mpi.Comm) error {
			s, err := newSurvey(ctx, c, "test", time.Millisecond, []int{size})
			if err != nil {
				return err
			}
			op, _ := collectiveNamed("allgather")
			f := undecided(s.pairs[0])
			f.Force = map[plan.Kind]string{plan.Allgather: collective.MemoryPlan}
			const at = 9 // behind reducing, copying, and seven kinds of messages: at another the ranks would disagree
			if wrong {
				s.gauges[at].take = func(ctx context.Context) (float64, error) {
					return s.place.timePlan(ctx, s.pairs[0], f, inMemory(t, op, size), heap{}, Options{Sizes: []int{size}, Budget: s.budget})
				}
			}
			return s.pass(ctx, 1)
		}
	}
	if err := besides(t, 0, measured(false), measured(true)); !errors.Is(err, ErrWrong) {
		t.Errorf("%v, want %v", err, ErrWrong)
	}
	if err := besides(t, 0, measured(false), measured(false)); err != nil {
		t.Errorf("nothing is wrong, and it says %v", err)
	}
}

// What goes wrong while time is taken is found by the check that -c adds.
func TestCheckEveryLooksAfterTiming(t *testing.T) {
	const calls = 4
	op, _ := collectiveNamed("allreduce")
	for check, want := range map[Check]error{CheckOnce: nil, CheckEvery: ErrWrong} {
		o := Options{Sizes: []int{8}, Iterations: calls, Skip: -1, Check: check}
		err := besides(t, 0, func(ctx context.Context, c *mpi.Comm) error {
			return measureCollective(ctx, c, op, shared{}, o, func(Row) {})
		}, func(ctx context.Context, c *mpi.Comm) error {
			return measureCollective(ctx, c, corrupted(op, 1+calls+1), shared{}, o, func(Row) {})
		})
		if !errors.Is(err, want) {
			t.Errorf("check %d: %v, want %v", check, err, want)
		}
	}
}

// corrupted is op with a wrong last element from a call on, counted from 1.
func corrupted(op collectiveOp, from int) collectiveOp {
	calls, call := 0, op.call
	op.call = func(v *vectors, ctx context.Context) error {
		if calls++; calls >= from {
			v.send[len(v.send)-1]++
		}
		return call(v, ctx)
	}
	return op
}
