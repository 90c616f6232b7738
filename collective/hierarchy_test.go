package collective

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Every plan in levels runs wherever ranks lie on hosts, where it fits.
func TestHierarchiesEqualTheOracle(t *testing.T) {
	maps := map[string]func(rank int) string{
		"in turn":       func(r int) string { return fmt.Sprint(r % 3) },
		"pairs in turn": func(r int) string { return fmt.Sprint(r / 2 % 3) },
		"some alone":    func(r int) string { return fmt.Sprint((r + 3) / 4 * (1 + r%9/8)) },
		"one alone":     func(r int) string { return fmt.Sprint(min(r, 1)) },
	}
	cases := []reduceCase{caseOf("sum of int32", Sum, sumOf[int32]), caseOf("concat", concat, concatOne)}
	for name, host := range maps {
		if need.RaceDetector && name != "in turn" { // schedules, which one goroutine of each rank runs alike
			continue
		}
		for _, size := range atMost(3, []int{3, 8, 13}) {
			for r, err := range onRanks(t, size, mpi.LocalOptions{Host: host}, func(ctx context.Context, c *mpi.Comm) error {
				for i, f := range hierarchies() {
					if err := reconfigure(ctx, c, f); err != nil {
						return err
					}
					for j, n := range []int{1, 37} {
						root, inPlace := (i+j)%size, (i+j)%2 == 0
						if err := moveAll[int32](ctx, c, i, n, root, inPlace); err != nil {
							return fmt.Errorf("%v, root %d, %d elements, in place %v: %w", f.Force, root, n, inPlace, err)
						}
						for _, k := range cases {
							if err := k.run(ctx, c, i, n, root, inPlace); err != nil {
								return fmt.Errorf("%v, %s, root %d, %d elements, in place %v: %w", f.Force, k.name, root, n, inPlace, err)
							}
						}
					}
				}
				return nil
			}) {
				if err != nil {
					t.Errorf("%d ranks, hosts %s: rank %d: %v", size, name, r, err)
				}
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}

// hierarchies forces each plan in levels in turn.
func hierarchies() []Config {
	var fs []Config
	for _, k := range plan.Kinds() {
		for _, name := range planNames(k) {
			if strings.HasPrefix(name, "node+") {
				fs = append(fs, Config{Force: map[plan.Kind]string{k: name}})
			}
		}
	}
	return fs
}
