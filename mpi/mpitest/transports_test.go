package mpitest

import (
	"context"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
)

// over is a Runner whose worlds stand on a real provider.
func over(open func(testing.TB, int) []*mpi.World) Runner {
	return func(t *testing.T, n int, f func(ctx context.Context, c *mpi.Comm) error) {
		t.Helper()
		Together(t, open(t, n), f)
	}
}

func sharedMemory(t testing.TB, n int) []*mpi.World { return SharedMemoryWorlds(t, n) }

// oneCopy has large messages go by one copy wherever the kernel allows it.
func oneCopy(t testing.TB, n int) []*mpi.World {
	return SharedMemoryWorlds(t, n, func(cfg *shm.Config) { cfg.Copies = 1 })
}

func TestConformanceShm(t *testing.T) { Conformance(t, over(sharedMemory)) }

func TestConformanceShmOneCopy(t *testing.T) { Conformance(t, over(oneCopy)) }

func TestConformanceTCP(t *testing.T) { Conformance(t, over(TCPWorlds)) }

func TestShmSoak(t *testing.T) { Soak(t, 4, over(sharedMemory)) }

func TestShmOneCopySoak(t *testing.T) { Soak(t, 4, over(oneCopy)) }

func TestTCPSoak(t *testing.T) { Soak(t, 4, over(TCPWorlds)) }
