package bench

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

// TestScaleAllreduce: what the model picks stays close to the bounds, and
// never beats the one that no schedule can.
func TestScaleAllreduce(t *testing.T) {
	for _, c := range []struct {
		network *sim.Network
		bytes   int
		most    float64 // of the bound with a link for each rank
	}{
		{sim.FDR(), 8, 1.3},
		{sim.FDR(), 64 << 10, 2},
		{sim.FDR(), 16 << 20, 1.3},
		{sim.HDR100(), 8, 1.3},
		{sim.HDR100(), 64 << 10, 2},
		{sim.HDR100(), 16 << 20, 1.3},
	} {
		x, err := Scale(t.Context(), ScaleOptions{Kind: plan.Allreduce, Network: c.network}, 4*c.network.RanksPerNode, c.bytes)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d B over %d ranks by %s: %v, bounds %v and %v", c.network.Name, c.bytes, x.Ranks, x.Plan, x.Simulated, x.Bound, x.Shared)
		if x.Ratio() > c.most {
			t.Errorf("%s: %d B over %d ranks by %s take %v, %.2f times the bound; want at most %.2f", c.network.Name, c.bytes, x.Ranks, x.Plan, x.Simulated, x.Ratio(), c.most)
		}
		if x.Simulated < x.Shared {
			t.Errorf("%s: %d B over %d ranks by %s take %v, less than the %v that the node's link and processors need", c.network.Name, c.bytes, x.Ranks, x.Plan, x.Simulated, x.Shared)
		}
	}
}

// TestScaleLanes: hierarchical collectives on blocks beat the flat ones for short blocks.
func TestScaleLanes(t *testing.T) {
	for kind, flat := range map[plan.Kind]string{plan.ReduceScatter: "circulant", plan.Alltoall: "bruck"} {
		o := ScaleOptions{Kind: kind, Network: sim.FDR()}
		best, err := Scale(t.Context(), o, 96, 8<<10)
		if err != nil {
			t.Fatal(err)
		}
		o.Plan = flat
		other, err := Scale(t.Context(), o, 96, 8<<10)
		if err != nil {
			t.Fatal(err)
		}
		if best.Plan != "node+lanes" || best.Simulated >= other.Simulated {
			t.Errorf("%v: %s in %v, %s in %v", kind, best.Plan, best.Simulated, flat, other.Simulated)
		}
	}
}
