package mpitest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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
			fmt.Printf("latency %d 2 %.4f %.4f\n", n, values[len(values)/2], values[len(values)/10])
		}
	}
	return nil
}

// BenchmarkMPILatencyBesideC runs this ping-pong and the C program's by turns,
// both with the thread level "serialized". It reports for each size the median over the launches of
// the ratio of both, of their medians and, less disturbed on a machine in use, of their 10th percentiles.
func BenchmarkMPILatencyBesideC(b *testing.B) {
	eachLibrary(b, func(b *testing.B, l library) {
		program := l.PeerProgram(b, "p2p.c")
		var sizes []string
		for _, n := range latencySizes {
			sizes = append(sizes, strconv.Itoa(n))
		}
		var ours, theirs []latencies
		const launches = 7
		for b.Loop() {
			for range launches {
				ours = append(ours, readLatencies(b, l.ranks(b, 2, "latency")))
				r := l.run(b, 2, nil, program, "latency", "--sizes", strings.Join(sizes, ","), "--thread", "serialized",
					"--budget-ms", fmt.Sprint(latencyBudget.Milliseconds()), "--rep-ms", fmt.Sprint(latencyRepeat.Milliseconds()))
				if r.Code != 0 {
					b.Fatal(r.Stderr)
				}
				theirs = append(theirs, readLatencies(b, r.Stdout))
			}
		}
		for _, n := range latencySizes {
			for i, what := range []string{"median", "p10"} {
				var own, c, ratios []float64
				for k := range ours {
					own, c = append(own, ours[k][n][i]), append(c, theirs[k][n][i])
					ratios = append(ratios, own[k]/c[k])
				}
				b.Logf("%8d B: %-6s %8.3f µs, C %8.3f µs, ratio %.2f (%.2f)", n, what, median(own), median(c), median(ratios), ratios)
				b.ReportMetric(median(ratios), fmt.Sprintf("xC-%s/%dB", what, n))
			}
		}
	})
}

// latencies are median and 10th percentile in microseconds by message length.
type latencies map[int][2]float64

// readLatencies reads the rows "latency BYTES RANKS MEDIAN P10 ...".
func readLatencies(b *testing.B, text string) latencies {
	found := latencies{}
	for line := range strings.Lines(text) {
		var n, ranks int
		var v [2]float64
		if count, _ := fmt.Sscanf(line, "latency %d %d %g %g", &n, &ranks, &v[0], &v[1]); count == 4 {
			found[n] = v
		}
	}
	if len(found) != len(latencySizes) {
		b.Fatalf("%d sizes in:\n%s", len(found), text)
	}
	return found
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	return s[len(s)/2]
}
