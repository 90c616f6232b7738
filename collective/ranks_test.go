package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// limit bounds what ranks of these tests may take, on any machine.
const limit = 5 * time.Minute

// atMost leaves out the sizes of more than so many ranks under the race detector, where arithmetic takes ten times as
// long. With one rank in between the goroutines meet in all the ways that they have.
func atMost(ranks int, sizes []int) []int {
	if !need.RaceDetector {
		return sizes
	}
	return slices.DeleteFunc(sizes, func(n int) bool { return n > ranks })
}

// oracleSizes are the numbers of ranks in the longer comparisons with the oracle.
func oracleSizes() (sizes []int) {
	if need.RaceDetector {
		return []int{3}
	}
	for n := range 17 {
		sizes = append(sizes, n+1)
	}
	return sizes
}

// lookUntil waits for what nobody tells of, or for the end of ctx.
func lookUntil(ctx context.Context, happened func() bool) {
	for look := time.Tick(time.Millisecond); !happened() && ctx.Err() == nil; {
		<-look
	}
}

// errKilled is what a rank returns that has been killed.
var errKilled = errors.New("killed")

// onRanks runs f on n ranks of one process and returns their errors.
func onRanks(t testing.TB, n int, o mpi.LocalOptions, f func(ctx context.Context, c *mpi.Comm) error) []error {
	t.Helper()
	worlds, err := mpi.Local(n, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for r, w := range worlds {
		ranks.Go(func() {
			if errs[r] = f(ctx, w.Comm()); errs[r] == errKilled {
				return // the dead say no goodbye
			}
			bye, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			if err := w.Close(bye); err != nil && errs[r] == nil {
				errs[r] = fmt.Errorf("close: %w", err)
			}
		})
	}
	ranks.Wait()
	return errs
}

// together is onRanks for what must succeed everywhere.
func together(t testing.TB, n int, f func(ctx context.Context, c *mpi.Comm) error) {
	t.Helper()
	for r, err := range onRanks(t, n, mpi.LocalOptions{Host: threePerHost}, f) {
		if err != nil {
			t.Errorf("%d ranks: rank %d: %v", n, r, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func threePerHost(rank int) string { return fmt.Sprintf("host%d", rank/3) }

// within fails unless err wraps want.
func within(err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("got %v, want %w", err, want)
	}
	return nil
}
