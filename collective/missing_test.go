package collective

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// reportMissing has all ranks but 0 and 2 come to a gather of n elements from each, at rank 0, after a report that
// says something.
func reportMissing(want string, n int, f Config) (func(context.Context, *mpi.Comm) error, *lines) {
	log := &lines{more: make(chan struct{}, 1)}
	reported := make(chan struct{})
	f.StallAfter = askAfter
	return func(ctx context.Context, c *mpi.Comm) error {
		f := f
		if c.Rank() == 0 {
			f.Log = slog.New(slog.NewTextHandler(log, nil))
		}
		if err := Configure(c, f); err != nil {
			return err
		}
		switch c.Rank() {
		case 0:
			go func() {
				defer close(reported)
				for {
					select {
					case <-log.more:
						if strings.Contains(log.String(), want) {
							return
						}
					case <-ctx.Done():
						return
					}
				}
			}()
		case 2: // is there before the others
		default:
			<-reported
		}
		return Gather(ctx, c, make([]int32, n), make([]int32, n*c.Size()), 0)
	}, log
}

// A stall report names the ranks that have not come, the first of many, and not those that have.
func TestStallReportNamesAllMissing(t *testing.T) {
	t.Parallel() // mostly waits
	for _, k := range []struct {
		size int
		want string
	}{
		{3, "waits for rank 1 (host0) since"},
		{5, "waits for ranks 1 (host0), 3 (host1), 4 (host1) since"},
		{12, "waits for ranks 1 (host0), 3 (host1), 4 (host1), 5 (host1), 6 (host2), 7 (host2), 8 (host2), 9 (host3) and 2 more since"},
	} {
		if need.RaceDetector && k.size != 5 { // seconds of waiting, each
			continue
		}
		gather, log := reportMissing(k.want, 5000, Config{Force: map[plan.Kind]string{plan.Gather: "linear"}})
		for r, err := range onRanks(t, k.size, mpi.LocalOptions{Host: threePerHost}, gather) {
			if err != nil {
				t.Errorf("%d ranks: rank %d: %v", k.size, r, err)
			}
		}
		if !strings.Contains(log.String(), k.want) {
			t.Errorf("%d ranks: no report says %q", k.size, k.want)
		}
		if want := "of rank 1: it does not answer"; k.size > 3 && !strings.Contains(log.String(), want) {
			t.Errorf("%d ranks: no report says %q", k.size, want)
		}
	}
}

// The same of ranks that meet in an arena, in each of its ways: slots, pieces and reading.
func TestStallReportNamesAllMissingInTheArena(t *testing.T) {
	t.Parallel() // mostly waits
	const want = "waits for ranks 1 (sim), 3 (sim) since"
	for _, way := range arenaPlans {
		for _, n := range []int{10, 50_000} {
			if need.RaceDetector && (n == 10) != (way == MemoryPlan) {
				continue
			}
			gather, log := reportMissing(want, n, Config{Force: forceWay(way)})
			for r, err := range inShared(t, way, 4, mpi.LocalOptions{}, gather) {
				if err != nil {
					t.Errorf("%s, %d elements: rank %d: %v", way, n, r, err)
				}
			}
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s, %d elements: no report says %q", way, n, want)
			}
		}
	}
}

// In an arena those are missing whose word has not come so far, of those that are waited for.
func TestMissingInAnArena(t *testing.T) {
	const word, size = 3, 5
	a := awaited{parts: make([]*part, size), word: word, least: 7, of: ranksFrom(1, 4)}
	for r := range a.parts {
		a.parts[r] = new(part)
	}
	a.parts[2][word] = 7
	if got, want := a.missing([]int{3}), []int{3, 1}; !slices.Equal(got, want) {
		t.Errorf("missing are %v, want %v", got, want)
	}
}
