package mpitest

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

func TestConformance(t *testing.T) {
	t.Run("copied", func(t *testing.T) { Conformance(t, Simulated()) })
	t.Run("pulled", func(t *testing.T) { Conformance(t, Simulated(Pull())) })
	t.Run("immediate", func(t *testing.T) { Conformance(t, Simulated(Delay(0), PerHost(2))) })
	t.Run("virtual", func(t *testing.T) { ConformanceOneGoroutine(t, Simulated(Virtual(sim.FDR()))) })
}

func TestLosses(t *testing.T) {
	t.Run("copied", func(t *testing.T) { Losses(t, SimulatedKill()) })
	t.Run("pulled", func(t *testing.T) { Losses(t, SimulatedKill(Pull())) })
}

func TestSoak(t *testing.T) {
	Soak(t, 4, Simulated(Pull()))
}
