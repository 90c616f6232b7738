package mpitest

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// latencySizes are the messages of the ping-pong, in bytes.
var latencySizes = []int{8, 64 << 10, 4 << 20}

// How long one size is measured in one launch, and one repetition of it.
const (
	latencyBudget = 300 * time.Millisecond
	latencyRepeat = 3 * time.Millisecond
)

// latency is the ping-pong of bench/peers/c/p2p.c with the same batches: half
// a round trip of blocking Send and Recv, buffers apart, the median of many repetitions.
func latency(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	peer := 1 - c.Rank()
	for _, n := range latencySizes {
		send, recv := filled(uint64(c.Rank()), n), make([]byte, n)
		batch := func(count int) (time.Duration, error) {
			start := time.Now()
			for range count {
				if c.Rank() == 0 {
					if err := mpi.Send(ctx, c, send, peer, 1); err != nil {
						return 0, err
					}
				}
				if _, err := mpi.Recv(ctx, c, recv, peer, 1); err != nil {
					return 0, err
				}
				if c.Rank() == 1 {
					if err := mpi.Send(ctx, c, send, peer, 1); err != nil {
						return 0, err
					}
				}
			}
			return time.Since(start), nil
		}
		if _, err := batch(2); err != nil {
			return err
		}
		if err := verify(recv, uint64(peer)); err != nil {
			return err
		}
		// Rank 0 decides how many calls make a repetition, and how many of them fit.
		plan := []int{1, 0}
		begin := time.Now()
		for plan[1] == 0 {
			took, err := batch(plan[0])
			if err != nil {
				return err
			}
			if c.Rank() == 0 {
				if took >= latencyRepeat {
					plan[1] = max(11, int((latencyBudget-time.Since(begin))/took))
				} else {
					plan[0] *= min(16, max(2, int(1.2*float64(latencyRepeat)/float64(took))))
				}
				if err := mpi.Send(ctx, c, plan, 1, 2); err != nil {
					return err
				}
			} else if _, err := mpi.Recv(ctx, c, plan, 0, 2); err != nil {
				return err
			}
		}
		values := make([]float64, plan[1])
		for i := range values {
			if err := sync2(ctx, c, peer, 3); err != nil {
				return err
			}
			took, err := batch(plan[0])
			if err != nil {
				return err
			}
			values[i] = float64(took.Nanoseconds()) / 1e3 / float64(2*plan[0])
		}
		if c.Rank() == 0 {
			slices.Sort(values)
			fmt.Printf("latency %d 2 %.4f\n", n, values[len(values)/2])
		}
	}
	return nil
}

// BenchmarkMPILatencyBesideC runs this ping-pong and the C program's by turns,
// both with the thread level "serialized", and reports for each size the median over the launches
// of both and of their ratio.
func BenchmarkMPILatencyBesideC(b *testing.B) {
	eachLibrary(b, func(b *testing.B, l library) {
		compiler := "mpicc." + l.part
		if _, err := exec.LookPath(compiler); err != nil {
			b.Skipf("no C program to compare with: %v", err)
		}
		root, err := lab.Root()
		if err != nil {
			b.Fatal(err)
		}
		program := filepath.Join(b.TempDir(), "p2p")
		if r := lab.Command(b.Context(), b, compiler, "-O3", "-march=native", "-o", program, filepath.Join(root, "bench/peers/c/p2p.c")).Run(); r.Code != 0 {
			b.Fatal(r.Stderr)
		}
		var sizes []string
		for _, n := range latencySizes {
			sizes = append(sizes, strconv.Itoa(n))
		}
		ours, theirs, ratios := map[int][]float64{}, map[int][]float64{}, map[int][]float64{}
		const launches = 7
		for b.Loop() {
			for range launches {
				own := medians(b, l.ranks(b, 2, "latency"))
				r := l.run(b, 2, nil, program, "latency", "--sizes", strings.Join(sizes, ","), "--thread", "serialized",
					"--budget-ms", fmt.Sprint(latencyBudget.Milliseconds()), "--rep-ms", fmt.Sprint(latencyRepeat.Milliseconds()))
				if r.Code != 0 {
					b.Fatal(r.Stderr)
				}
				c := medians(b, r.Stdout)
				for _, n := range latencySizes {
					ours[n], theirs[n], ratios[n] = append(ours[n], own[n]), append(theirs[n], c[n]), append(ratios[n], own[n]/c[n])
				}
			}
		}
		for _, n := range latencySizes {
			b.Logf("%8d B: %8.3f µs, C %8.3f µs, ratio %.2f (%.2f)", n, median(ours[n]), median(theirs[n]), median(ratios[n]), ratios[n])
			b.ReportMetric(median(ratios[n]), fmt.Sprintf("xC/%dB", n))
		}
	})
}

// medians reads the rows "latency BYTES RANKS MEDIAN ...".
func medians(b *testing.B, text string) map[int]float64 {
	found := map[int]float64{}
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 4 || f[0] != "latency" {
			continue
		}
		n, err := strconv.Atoi(f[1])
		v, verr := strconv.ParseFloat(f[3], 64)
		if err != nil || verr != nil {
			b.Fatalf("malformed row %q", s.Text())
		}
		found[n] = v
	}
	if len(found) != len(latencySizes) {
		b.Fatalf("%d sizes in:\n%s", len(found), text)
	}
	return found
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[len(s)/2]
}
