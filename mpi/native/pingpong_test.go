package native

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
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

// It asserts nothing about time; -v shows the figures.
func TestPingPong(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "pingpong") })
}
