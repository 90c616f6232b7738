package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// A plan is measured as itself, also where the system's library would do the collective.
func TestTuneKeepsTheLibraryApart(t *testing.T) {
	mpitest.Together(t, mpitest.TCPWorlds(t, 2), func(ctx context.Context, c *mpi.Comm) error {
		if err := collective.Configure(c, collective.Config{Library: collective.LibraryAlways}); err != nil {
			return err
		}
		p, err := newPoint(c, collective.DefaultModel(c), "bcast", 8)
		if err != nil {
			return err
		}
		for i, f := range p.plans {
			if f.Library != collective.LibraryNever {
				return fmt.Errorf("%s is measured with %+v", p.Times[i].Plan, f)
			}
		}
		return nil
	})
}

// One rank alone is refused: of what plans are priced by it could measure hardly anything, and a model would pass the rest off as measured.
func TestOneRankIsNotMeasured(t *testing.T) {
	mpitest.Run(t, 1, func(ctx context.Context, c *mpi.Comm) error {
		o := Options{Sizes: []int{8}, Budget: time.Millisecond}
		_, model := measureModel(ctx, c, "test", o.Budget, o.Sizes, 1)
		_, tune := Tune(ctx, c, collective.DefaultModel(c), []string{"bcast"}, o)
		_, _, check := CheckModel(ctx, c, "test", []string{"bcast"}, o)
		for name, err := range map[string]error{"MeasureModel": model, "Tune": tune, "CheckModel": check} {
			if !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "on 1 rank: at least 2") {
				return fmt.Errorf("%s says %v", name, err)
			}
		}
		return nil
	})
}

// A budget that is too short to be shared out is still one, and no budget stays none.
func TestLeastBudgetIsShared(t *testing.T) {
	for _, k := range []struct{ budget, want time.Duration }{{0, 0}, {1, 1}, {3, 1}, {10, 2}, {time.Second, time.Second / 5}} {
		if got := perPass(k.budget, 5); got != k.want {
			t.Errorf("of %v one of 5 passes has %v, want %v", k.budget, got, k.want)
		}
	}
	mpitest.Run(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		o := Options{Sizes: []int{8}, Budget: tunePasses - 1}
		points, err := newPoints(ctx, c, collective.DefaultModel(c), []string{"bcast"}, o.Sizes)
		if err != nil {
			return err
		}
		p := &points[0]
		p.plans, p.Times = p.plans[:1], p.Times[:1]
		calls, call := 0, p.op.call
		p.op.call = func(v *vectors, ctx context.Context) error {
			calls++
			return call(v, ctx)
		}
		if err := measurePoints(ctx, c, nil, points, o, func() error { return nil }); err != nil {
			return err
		}
		if osu, _ := OSUCalls(Collective, o.Sizes[0]); calls >= osu {
			return fmt.Errorf("%d calls for a budget of %v, as many as OSU's %d without one", calls, o.Budget, osu)
		}
		return nil
	})
}

// What tune writes is what the same ranks take, also where those of one host talk over the network.
func TestTunedRulesMatch(t *testing.T) {
	mpitest.Together(t, mpitest.TCPWorlds(t, 2), func(ctx context.Context, c *mpi.Comm) error {
		points, err := Tune(ctx, c, collective.DefaultModel(c), []string{"allgather", "reduce_scatter", "barrier"},
			Options{Sizes: []int{12}, Budget: 5 * time.Millisecond, Repetition: 200 * time.Microsecond})
		if err != nil {
			return err
		}
		site := &collective.Site{Name: "tuned"}
		for _, x := range points {
			site.Add(x.Rule())
		}
		if err := barrier(ctx, c); err != nil { // nobody is in Tune's last collective any more
			return err
		}
		if err := collective.Configure(c, collective.Config{Site: site}); err != nil {
			return err
		}
		for i, bytes := range []int{24, 12, 0} {
			kind, err := plan.ParseKind(points[i].Op)
			if err != nil {
				return err
			}
			if e := collective.Explain(kind, bytes, c); e.Plan != points[i].Best || e.Why != "site table tuned" || e.Bytes != points[i].Total {
				return fmt.Errorf("by %+v:\n%v", points[i].Rule(), e)
			}
		}
		return nil
	})
}
