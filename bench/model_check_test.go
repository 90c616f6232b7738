package bench

import (
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

func TestModelCheckFigures(t *testing.T) {
	point := func(predicted, chosen, best float64) Tuned {
		return Tuned{Op: "bcast", Bytes: 8, Chosen: "linear", Best: "binomial", Predicted: predicted,
			Times: []PlanTime{{"linear", chosen}, {"binomial", best}}}
	}
	for _, c := range []struct {
		name              string
		ranks             int
		points            []Tuned
		predicted, chosen float64
		good              bool
	}{
		{"all well", 2, []Tuned{point(1, 1.2, 1.1), point(2, 2, 2)}, 1, 1, true},
		{"a price too low", 2, []Tuned{point(1, 2, 2), point(2, 2, 2)}, 0.5, 1, false},
		{"with more ranks prices only have to rank", 4, []Tuned{point(1, 2, 2), point(2, 2, 2)}, 0.5, 1, true},
		{"a bad choice", 2, []Tuned{point(2, 2, 1.7), point(2, 2, 2)}, 1, 0.5, false},
		{"which with more ranks is allowed", 4, []Tuned{point(2, 2, 1.7), point(2, 2, 2)}, 1, 1, true},
		{"nothing measured", 2, nil, 0, 0, false},
	} {
		k := ModelCheck{Ranks: c.ranks, Points: c.points}
		if math.Abs(k.Predicted()-c.predicted) > 1e-9 || math.Abs(k.Chosen()-c.chosen) > 1e-9 || k.Good() != c.good {
			t.Errorf("%s: %.2f predicted, %.2f chosen, good %v; want %.2f, %.2f, %v", c.name, k.Predicted(), k.Chosen(), k.Good(), c.predicted, c.chosen, c.good)
		}
	}
	k := ModelCheck{Ranks: 2, Points: []Tuned{point(2, 2, 2), point(2, 3, 2)}}
	if s := k.String(); !strings.Contains(s, "bcast of 8 B by linear, 50 % longer than binomial") {
		t.Errorf("the worst choice is missing in %q", s)
	}
}

// TestCheckModel measures a model and checks it, for its shape: times on a
// test machine mean nothing.
func TestCheckModel(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	checks := make([]ModelCheck, len(worlds))
	for rank, w := range worlds {
		all.Go(func() {
			m, k, err := CheckModel(t.Context(), w.Comm(), "test", []string{"bcast", "barrier"},
				Options{Sizes: []int{8, 4096}, Budget: 3 * time.Millisecond})
			if err != nil {
				t.Error(err)
				return
			}
			if n := len(modelSizes); len(m.Folded) != n || len(m.Host.OneWay) != n {
				t.Errorf("rank %d: curves of %d and %d points, want %d", rank, len(m.Folded), len(m.Host.OneWay), n)
			}
			for i, p := range m.Host.Exchange {
				if !(p.Seconds >= 0) || i > 0 && p.Seconds < m.Host.Exchange[i-1].Seconds {
					t.Errorf("rank %d: an exchange of %d B takes %g s", rank, p.Bytes, p.Seconds)
				}
			}
			checks[rank] = k
		})
	}
	all.Wait()
	for rank, k := range checks {
		if len(k.Points) != 3 {
			t.Fatalf("rank %d: %d points, want bcast of two sizes and a barrier", rank, len(k.Points))
		}
		for i, x := range k.Points {
			if !(x.Of(x.Chosen) > 0) || !(x.Of(x.Best) > 0) || x.Of(x.Best) > x.Of(x.Chosen) || len(x.Times) < 2 || !(x.Predicted >= 0) {
				t.Errorf("rank %d: %+v", rank, x)
			}
			if x.Chosen != checks[0].Points[i].Chosen || x.Best != checks[0].Points[i].Best {
				t.Errorf("ranks 0 and %d disagree on %s of %d B", rank, x.Op, x.Bytes)
			}
		}
	}
}
