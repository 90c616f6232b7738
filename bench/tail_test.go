package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

func TestTailOf(t *testing.T) {
	upTo := func(n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(n - i)
		}
		return v
	}
	for _, c := range []struct {
		n    int
		want Tail
	}{
		{1, Tail{1, 1, 1}}, {2, Tail{1, 2, 2}}, {10, Tail{5, 9, 10}}, {100, Tail{50, 90, 99}}, {10000, Tail{5000, 9000, 9900}},
	} {
		if got := tailOf(upTo(c.n)); got != c.want {
			t.Errorf("of %d: %+v, want %+v", c.n, got, c.want)
		}
	}
}

// Single slow iterations are in the tail, however many fast ones stand beside them in a batch.
func TestTailIsOfSingleIterations(t *testing.T) {
	mpitest.Run(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		o := Options{Iterations: 100, Skip: -1, Tail: true}
		l := new(laps)
		_, calls, err := timer{c: c, o: o}.measure(ctx, 8, func(_ context.Context, count int, l *laps) (float64, error) {
			for range count {
				took := time.Microsecond
				if len(l.times)%20 == 0 { // 5 of 100
					took = time.Millisecond
				}
				l.add(took)
			}
			return 1, nil
		}, l)
		if err != nil || calls != 100 || len(l.times) != 100 {
			return fmt.Errorf("%d calls, %d laps: %w", calls, len(l.times), err)
		}
		if err := l.average(ctx, c); err != nil || c.Rank() != 0 {
			return err
		}
		if got := *l.tail(func(us float64) float64 { return us }); got != (Tail{1, 1, 1000}) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

// The laps of a collective are averaged over the ranks before they are sorted: each rank's slowest
// calls may be others.
func TestLapsAreAveragedOverRanks(t *testing.T) {
	mpitest.Run(t, 3, func(ctx context.Context, c *mpi.Comm) error {
		l := &laps{times: []float64{1, 1, 1}}
		l.times[c.Rank()] = 7
		if err := l.average(ctx, c); err != nil {
			return err
		}
		if c.Rank() == 0 && !slices.Equal(l.times, []float64{3, 3, 3}) {
			return fmt.Errorf("%v", l.times)
		}
		return nil
	})
}

// What OSU makes of a lap.
func TestLapOfMessages(t *testing.T) {
	mpitest.Run(t, 4, func(_ context.Context, c *mpi.Comm) error {
		m := &messages{c: c, window: 64, send: make([]byte, 1000)}
		for op, want := range map[string]float64{"latency": 5, "fresh": 5, "pairs": 10, "bw": 6400, "bibw": 12800, "mbw_mr": 12800} {
			if got := m.lap(op, 10); math.Abs(got-want) > 1e-9 {
				return fmt.Errorf("%s: %g, want %g", op, got, want)
			}
		}
		return nil
	})
}

// No rank goes on while another still takes time.
func TestTimersEndTogether(t *testing.T) {
	for _, o := range []Options{{Iterations: 3, Skip: -1}, {Budget: time.Millisecond, Repetition: 100 * time.Microsecond}} {
		var ended [2]atomic.Int32 // batches of each rank
		returned := make(chan struct{})
		mpitest.Run(t, 2, func(ctx context.Context, c *mpi.Comm) error {
			_, _, err := timer{c: c, o: o}.measure(ctx, 8, func(_ context.Context, count int, _ *laps) (float64, error) {
				if c.Rank() == 0 {
					select {
					case <-returned: // before this batch has ended
					case <-time.After(10 * time.Millisecond):
					}
				}
				ended[c.Rank()].Add(1)
				return 1, nil
			}, nil)
			if c.Rank() == 1 {
				theirs, own := ended[0].Load(), ended[1].Load()
				close(returned)
				if theirs != own {
					t.Errorf("%+v: rank 1 goes on after %d batches, and rank 0 has ended %d", o, own, theirs)
				}
			}
			return err
		})
	}
}

// As many calls come before those that count as the user said.
func TestCallsBeforeTiming(t *testing.T) {
	for _, c := range []struct {
		name  string
		kind  Kind
		o     Options
		bytes int
		want  []int // all batches
	}{
		{"OSU's, small", Latency, Options{Iterations: 3}, 8 << 10, []int{100, 3}},
		{"OSU's, large", Latency, Options{Iterations: 3}, 8<<10 + 1, []int{10, 3}},
		{"OSU's, small windows", Windows, Options{}, 8 << 10, append([]int{10}, slices.Repeat([]int{10}, 10)...)},
		{"OSU's, large windows", Windows, Options{}, 8<<10 + 1, []int{2, 10, 10}},
		{"OSU's, small collectives", Collective, Options{}, 8 << 10, append([]int{100}, slices.Repeat([]int{10}, 100)...)},
		{"OSU's, large collectives", Collective, Options{}, 8<<10 + 1, append([]int{10}, slices.Repeat([]int{1}, 100)...)},
		{"some", Latency, Options{Iterations: 3, Skip: 7}, 8, []int{7, 3}},
		{"none", Latency, Options{Iterations: 3, Skip: -1}, 8, []int{3}},
	} {
		if got := batches(t, c.kind, c.o, c.bytes); !slices.Equal(got, c.want) {
			t.Errorf("%s: batches of %v calls, want %v", c.name, got, c.want)
		}
	}
	for skip, times := range map[int]int{-1: 0, 0: 0, 7: 1} {
		got := batches(t, Latency, Options{Budget: 5 * time.Millisecond, Repetition: 100 * time.Microsecond, Skip: skip}, 8)
		found := 0
		for _, n := range got {
			if n == 7 {
				found++
			}
		}
		// Calibration ends with a batch that fills a repetition; what is skipped comes between it and its likes.
		if last := got[len(got)-1]; found != times || times > 0 && got[slices.Index(got, 7)+1] != last || times > 0 && got[slices.Index(got, 7)-1] != last {
			t.Errorf("skip %d with a budget: batches of %v calls", skip, got)
		}
	}
}

func TestOSUCalls(t *testing.T) {
	for k, want := range map[Kind][4]int{Latency: {10000, 100, 1000, 10}, Windows: {100, 10, 20, 2}, Collective: {1000, 100, 100, 10}} {
		var got [4]int
		got[0], got[1] = OSUCalls(k, 8<<10)
		got[2], got[3] = OSUCalls(k, 8<<10+1)
		if got != want {
			t.Errorf("kind %d: %v, want %v", k, got, want)
		}
	}
}

// batches are the calls of each batch that a size takes on rank 0. A call takes 20 µs at least.
func batches(t *testing.T, k Kind, o Options, bytes int) []int {
	t.Helper()
	var counts []int
	mpitest.Run(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		_, _, err := timer{c: c, kind: k, o: o}.measure(ctx, bytes, func(_ context.Context, count int, _ *laps) (float64, error) {
			for begin := time.Now(); time.Since(begin) < time.Duration(count)*20*time.Microsecond; {
			}
			if c.Rank() == 0 {
				counts = append(counts, count)
			}
			return 1, nil
		}, nil)
		return err
	})
	return counts
}
