package collective

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
)

// Prices against what was measured once, with the model of the same minutes: fisterra bench tune of all collectives with two
// ranks on a virtual machine with 2 cores of an AMD EPYC. The name says how far from each other the cores were.
func TestPricesOfMeasuredPlans(t *testing.T) {
	const (
		predictionLimit, predictionShare = 0.30, 0.9
		choiceLimit                      = 0.15
	)
	for _, name := range []string{"near"} {
		t.Run(name, func(t *testing.T) {
			points := measuredPoints(t, filepath.Join("testdata", "prices", name+".txt"), 2)
			config := Config{Site: modelOf(t, filepath.Join("testdata", "prices", name+".json"))}
			within := 0
			for _, p := range points {
				e := ExplainFor(p.kind, p.bytes, Place{Ranks: 2, Transport: "shm"}, config)
				took, ok := p.times[e.Plan]
				if !ok {
					t.Fatalf("%v of %d B by %s was not measured: %v", p.kind, p.bytes, e.Plan, p.times)
				}
				best := p.best()
				if took > best*(1+choiceLimit) {
					t.Errorf("%v of %d B by %s takes %.2f µs, the best %.2f", p.kind, p.bytes, e.Plan, took, best)
				}
				if ratio := e.Seconds * 1e6 / took; math.Abs(ratio-1) <= predictionLimit {
					within++
				} else {
					t.Logf("%v of %d B by %s: %.2f µs predicted, %.2f measured", p.kind, p.bytes, e.Plan, e.Seconds*1e6, took)
				}
			}
			if float64(within) < predictionShare*float64(len(points)) {
				t.Errorf("%d of %d prices are within %.0f %% of what was measured, want %.0f %%", within, len(points), 100*predictionLimit, 100*predictionShare)
			}
		})
	}
}

// The default model has to do on machines that nobody has measured: near are the cores of a 2-core virtual machine, far those of a
// 16-core one of an Intel Xeon. A number in the name is that of the ranks, else there are two.
func TestDefaultModelOnMeasuredMachines(t *testing.T) {
	for name, limit := range map[string]struct {
		ranks       int
		mean, worst float64
	}{"near": {2, 1.02, 1.15}, "far": {2, 1.1, 2}, "far4": {4, 1.04, 1.8}, "far8": {8, 1.03, 1.7}, "far16": {16, 1.04, 1.5}} {
		t.Run(name, func(t *testing.T) {
			logs := 0.0
			points := measuredPoints(t, filepath.Join("testdata", "prices", name+".txt"), limit.ranks)
			for _, p := range points {
				e := ExplainFor(p.kind, p.bytes, Place{Ranks: limit.ranks, Transport: "shm"}, Config{})
				ratio := p.times[e.Plan] / p.best()
				logs += math.Log(ratio)
				if ratio > 1.15 {
					t.Logf("%v of %d B by %s takes %.2f µs, the best %.2f", p.kind, p.bytes, e.Plan, p.times[e.Plan], p.best())
				}
				if !(ratio <= limit.worst) {
					t.Errorf("%v of %d B by %s takes %.2f times as long as the best, want %.2f at most", p.kind, p.bytes, e.Plan, ratio, limit.worst)
				}
			}
			mean := math.Exp(logs / float64(len(points)))
			t.Logf("plans take %.3f times as long as the best, geometric mean", mean)
			if mean > limit.mean {
				t.Errorf("want %.2f at most", limit.mean)
			}
		})
	}
}

type measuredPoint struct {
	kind  plan.Kind
	bytes int                // as Explain has them
	times map[string]float64 // of the plans, in µs
}

// best is the time of the quickest plan.
func (p measuredPoint) best() float64 { return slices.Min(slices.Collect(maps.Values(p.times))) }

// measuredPoints reads the table of fisterra bench tune over so many ranks.
func measuredPoints(t *testing.T, file string, ranks int) (points []measuredPoint) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rows, _ := strings.Cut(string(text), "\n")
	for row := range strings.Lines(rows) {
		f := strings.Fields(row)
		kind, err := plan.ParseKind(f[0])
		if err != nil {
			t.Fatal(err)
		}
		p := measuredPoint{kind: kind, times: map[string]float64{}}
		if p.bytes, err = strconv.Atoi(f[1]); err != nil {
			t.Fatal(err)
		}
		switch kind {
		case plan.Allgather, plan.Alltoall, plan.Gather, plan.Scatter: // of one rank's share
			p.bytes *= ranks
		}
		for _, field := range f {
			if name, micros, ok := strings.Cut(field, "="); ok {
				if p.times[name], err = strconv.ParseFloat(micros, 64); err != nil {
					t.Fatal(err)
				}
			}
		}
		points = append(points, p)
	}
	if len(points) == 0 {
		t.Fatalf("nothing in %s", file)
	}
	return points
}

func modelOf(t *testing.T, file string) *Site {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := ReadSite(f, file)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
