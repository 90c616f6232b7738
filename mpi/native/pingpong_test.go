package native

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// pingpong prints the median time one way, for a few sizes, one buffer for sending and
// receiving.
func pingpong(ctx context.Context, w *World) error {
	for _, p := range []struct{ bytes, rounds int }{{8, 5000}, {65536, 500}, {4 << 20, 10}} {
		buf := make([]byte, p.bytes)
		if err := pingpongs(ctx, w, p.rounds, buf); err != nil {
			return err
		}
		var times []float64
		for range 40 {
			start := time.Now()
			if err := pingpongs(ctx, w, p.rounds/5, buf); err != nil {
				return err
			}
			times = append(times, float64(time.Since(start).Nanoseconds())/float64(2*(p.rounds/5))/1e3)
		}
		slices.Sort(times)
		if w.comm.rank == 0 {
			fmt.Printf("%8d B one way: median %.3f µs, 10th percentile %.3f µs\n", p.bytes, times[20], times[4])
		}
	}
	return nil
}

// BenchmarkPingPong reports the medians of two ranks on this host, one run however often
// the benchmark is to be repeated.
func BenchmarkPingPong(b *testing.B) {
	for _, launcher := range lab.Launchers() {
		l := launch{Launcher: launcher}
		b.Run(l.Part, func(b *testing.B) {
			l.needed(b)
			o := l.start(b, 2, "pingpong")
			if o.code != 0 {
				b.Fatal(o)
			}
			for line := range strings.Lines(o.text) {
				var n int
				var median float64
				if _, err := fmt.Sscanf(strings.TrimSpace(line), "%d B one way: median %f", &n, &median); err == nil {
					b.ReportMetric(median, fmt.Sprintf("µs/%dB", n))
				}
			}
			b.ReportMetric(0, "ns/op") // of the launch: of no interest
		})
	}
}
