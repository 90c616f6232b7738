package mpitest

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

// TestVirtualScale runs the engine at sizes that no test machine has, and
// says what that costs.
func TestVirtualScale(t *testing.T) {
	barrier := func(ctx context.Context, c *mpi.Comm) error {
		for range 3 {
			for step := 1; step < c.Size(); step *= 2 {
				to, from := (c.Rank()+step)%c.Size(), (c.Rank()+c.Size()-step)%c.Size()
				if _, err := mpi.Sendrecv(ctx, c, []int64{1}, to, 0, make([]int64, 1), from, 0); err != nil {
					return err
				}
			}
		}
		return nil
	}
	shared := make([]byte, 1<<20)
	ring := func(ctx context.Context, c *mpi.Comm) error {
		right, left := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		for range 2 * (c.Size() - 1) {
			in := mpi.Irecv(c, shared, left, 0)
			if err := mpi.Send(ctx, c, shared, right, 0); err != nil {
				return err
			}
			if _, err := in.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	cases := []struct {
		name  string
		ranks int
		run   func(context.Context, *mpi.Comm) error
	}{
		{"dissemination", 4096, barrier},
		{"ring", 128, ring},
	}
	if wantLarge() {
		cases[1].ranks = 1024
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			begun := time.Now()
			fabric := sim.New(sim.Config{Ranks: k.ranks, Network: sim.HDR100(), SizesOnly: true})
			Run(t, k.ranks, k.run, Over(fabric), Timeout(5*time.Minute))
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			s, held := fabric.Stats(), m.Sys-m.HeapReleased // not what earlier tests have given back
			t.Logf("%d ranks: %v of virtual time in %v, %d messages, %d events, %d MiB from the system",
				k.ranks, fabric.Elapsed(), time.Since(begun).Round(time.Millisecond), s.Messages, s.Events, held>>20)
			if held > 8<<30 {
				t.Errorf("%d MiB from the system, the limit is 8 GiB", held>>20)
			}
		})
	}
}
