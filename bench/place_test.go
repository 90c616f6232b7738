package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// A figure is taken again if the ranks were moved while it was taken, as often on both, as long as there is patience.
func TestFiguresAreOfOnePlace(t *testing.T) {
	const usual, far = 100 * time.Nanosecond, 300 * time.Nanosecond
	for _, k := range []struct {
		name     string
		looks    []time.Duration // of rank 0, one after the other; the last one for ever
		patience time.Duration
		figures  int
	}{
		{"they stay", []time.Duration{usual, usual * 6 / 5}, time.Hour, 1},
		{"they are moved", []time.Duration{usual, far, usual}, time.Hour, 2},
		{"they are moved twice", []time.Duration{usual, far, usual, usual / 3, far, usual}, time.Hour, 3},
		{"they are away at first", []time.Duration{far, far, usual}, time.Hour, 1},
		{"they are away for good", []time.Duration{far}, 10 * time.Millisecond, 1},
		{"no patience is left", []time.Duration{usual, far}, 0, 1},
	} {
		t.Run(k.name, func(t *testing.T) {
			mpitest.Run(t, 2, func(ctx context.Context, c *mpi.Comm) error {
				looks := k.looks
				p := &place{c: c, usual: usual, patience: k.patience, exchange: func(ctx context.Context) (time.Duration, error) {
					took := looks[0]
					if len(looks) > 1 {
						looks = looks[1:]
					}
					if c.Rank() > 0 { // on which nothing hangs
						took = time.Hour
					}
					return took, barrier(ctx, c)
				}}
				figures := 0
				x, err := p.take(ctx, func() (float64, error) {
					figures++
					return float64(figures), nil
				})
				if err != nil || figures != k.figures || x != float64(figures) {
					return fmt.Errorf("taken %d times, want %d: %v, %v", figures, k.figures, x, err)
				}
				return nil
			})
		})
	}
}

// Two ranks of one host with a processor each have a place; who has none is measured as it is.
func TestPlaces(t *testing.T) {
	for name, k := range map[string]struct {
		worlds []*mpi.World
		want   bool
	}{
		"two":              {mpitest.BoundWorlds(t, "1", "2"), true},
		"two that share":   {mpitest.BoundWorlds(t, "1", "1"), false},
		"three":            {mpitest.BoundWorlds(t, "1", "2", "4"), false},
		"over the network": {mpitest.TCPWorlds(t, 2), false},
	} {
		mpitest.Together(t, k.worlds, func(ctx context.Context, c *mpi.Comm) error {
			p, err := newPlace(ctx, c, time.Millisecond)
			if err != nil || (p != nil) != k.want || p != nil && c.Rank() == 0 && p.usual <= 0 {
				return fmt.Errorf("%s: %+v, %w", name, p, err)
			}
			x, err := p.take(ctx, func() (float64, error) { return 7, nil })
			if err != nil || x != 7 {
				return fmt.Errorf("%s: %v, %w", name, x, err)
			}
			return nil
		})
	}
}
