package collective

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
)

// Ranks may differ in whether a call is in place, and must do it alike all the same.
func TestArenaPricesDoNotDependOnInPlace(t *testing.T) {
	cfg := Config{Model: defaultModel}
	for kind := range plan.Exscan + 1 {
		for _, size := range []int{2, 3, 8} {
			for _, perCore := range []float64{1, 2} {
				for n := 1 << 10; n <= 1<<22; n *= 2 {
					p := plan.Problem{Kind: kind, Size: size, Count: n, ElemBytes: 4, RanksPerCore: perCore}
					if kind == plan.ReduceScatter {
						p.Counts = make([]int, size)
						p.Counts[0] = n
					}
					inPlace := p
					inPlace.InPlace = true
					for i, way := range arenaWays(&p, cfg.Model, true) {
						if other := arenaWays(&inPlace, cfg.Model, true)[i]; other != way {
							t.Errorf("%s of %d by %d ranks: %+v, in place %+v", kind, n, size, way, other)
						}
					}
					if cfg.readsMapped(&p, true) != cfg.readsMapped(&inPlace, true) {
						t.Errorf("%s of %d by %d ranks is read from memory that is mapped only when it is in place, or only when not", kind, n, size)
					}
				}
			}
		}
	}
}

// To figures that were measured by ranks that share a processor nothing is added for sharing it, as in plans.
func TestArenaPricesAddNoTurnsTwice(t *testing.T) {
	measured := defaultModel.Clone()
	measured.Switch = 0
	for _, kind := range plan.Kinds() {
		for _, n := range []int{1 << 10, 1 << 20} {
			alone := plan.Problem{Kind: kind, Size: 4, Count: n, ElemBytes: 4}
			shared := alone
			shared.RanksPerCore = 4
			for i, way := range arenaWays(&alone, measured, true) {
				if other := arenaWays(&shared, measured, true)[i]; other != way {
					t.Errorf("%s of %d: %+v, where 4 ranks share a processor %+v", kind, n, way, other)
				}
			}
			for i, way := range arenaWays(&alone, defaultModel, true) {
				if other := arenaWays(&shared, defaultModel, true)[i]; other.Seconds <= way.Seconds {
					t.Errorf("%s of %d: %+v, where 4 ranks share a processor %+v", kind, n, way, other)
				}
			}
		}
	}
}
