package collective

import (
	"context"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// pairwise makes rows, each a level of every factor, such that any two levels of any two factors
// meet in a row.
func pairwise(levels []int) [][]int {
	type level struct{ factor, level int }
	type pair struct{ a, b level }
	open := map[pair]bool{}
	var order []pair // so that the rows do not depend on the order of maps
	for f := range levels {
		for g := range f {
			for i := range levels[f] {
				for j := range levels[g] {
					p := pair{level{g, j}, level{f, i}}
					open[p] = true
					order = append(order, p)
				}
			}
		}
	}
	var rows [][]int
	for _, p := range order {
		if !open[p] {
			continue
		}
		row := make([]int, len(levels))
		for f := range row {
			row[f] = -1
		}
		row[p.a.factor], row[p.b.factor] = p.a.level, p.b.level
		// Each other factor takes the level that meets most of the others for the first time.
		for f := range row {
			if row[f] >= 0 {
				continue
			}
			best, most := 0, -1
			for k := range levels[f] {
				i, news := (k+len(rows))%levels[f], 0
				for g := range row {
					if row[g] >= 0 && open[pair{level{min(f, g), at(f < g, i, row[g])}, level{max(f, g), at(f < g, row[g], i)}}] {
						news++
					}
				}
				if news > most {
					best, most = i, news
				}
			}
			row[f] = best
		}
		for f := range row {
			for g := range f {
				delete(open, pair{level{g, row[g]}, level{f, row[f]}})
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// at is a where first, else b.
func at(first bool, a, b int) int {
	if first {
		return a
	}
	return b
}

// Reductions over real transports: any two of the operator with its type, the length, the number of ranks, the root
// and whether it is in place meet.
func TestReductionsPairwise(t *testing.T) {
	cases := allCases()
	lengths, sizes := []int{0, 1, 9, 500, 3000}, []int{2, 3, 5}
	rows := pairwise([]int{len(cases), len(lengths), len(sizes), 3, 2})
	t.Logf("%d rows", len(rows))
	for i, size := range sizes {
		if len(atMost(3, []int{size})) == 0 {
			continue
		}
		run := func(ctx context.Context, c *mpi.Comm) error {
			for k, row := range rows {
				if row[2] != i {
					continue
				}
				n, root, inPlace := lengths[row[1]], []int{0, size / 2, size - 1}[row[3]], row[4] == 1
				if err := cases[row[0]].run(ctx, c, k, n, root, inPlace); err != nil {
					return fmt.Errorf("%s, %d elements, root %d, in place %v: %w", cases[row[0]].name, n, root, inPlace, err)
				}
			}
			return nil
		}
		t.Run(fmt.Sprintf("shm/%d", size), func(t *testing.T) { overSharedMemory(t, size, run) })
		t.Run(fmt.Sprintf("tcp/%d", size), func(t *testing.T) { overTCP(t, size, run) })
	}
}

func TestPairwise(t *testing.T) {
	levels := []int{7, 3, 4, 2, 2}
	met := map[[4]int]bool{}
	rows := pairwise(levels)
	for _, row := range rows {
		for f := range row {
			for g := range f {
				met[[4]int{g, row[g], f, row[f]}] = true
			}
		}
	}
	for f := range levels {
		for g := range f {
			for i := range levels[f] {
				for j := range levels[g] {
					if !met[[4]int{g, j, f, i}] {
						t.Errorf("level %d of factor %d does not meet level %d of factor %d", j, g, i, f)
					}
				}
			}
		}
	}
	if most := 2 * 7 * 4; len(rows) > most {
		t.Errorf("%d rows, more than %d", len(rows), most)
	}
}
