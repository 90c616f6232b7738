package sim

import (
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/transporttest"
)

// factory opens fabrics with the given config, with or without memory.
func factory(cfg Config, memory bool) transporttest.Factory {
	return func(t *testing.T, n int) []transporttest.Rank {
		cfg := cfg
		cfg.Ranks = n
		f := New(cfg)
		t.Logf("seed %d", f.Seed())
		ranks := make([]transporttest.Rank, n)
		for i := range ranks {
			var p transport.Provider
			var err error
			if memory {
				p, err = f.OpenMemory(i)
			} else {
				p, err = f.Open(i)
			}
			if err != nil {
				t.Fatal(err)
			}
			ranks[i] = transporttest.Rank{Provider: p, Break: func() { f.Kill(i) }}
		}
		return ranks
	}
}

func TestConformance(t *testing.T) {
	t.Run("immediate", func(t *testing.T) { transporttest.Run(t, factory(Config{}, false)) })
	t.Run("memory", func(t *testing.T) { transporttest.Run(t, factory(Config{}, true)) })
	t.Run("delayed", func(t *testing.T) {
		transporttest.Run(t, factory(Config{MaxDelay: 300 * time.Microsecond, DetectAfter: 5 * time.Millisecond, QueueBytes: 64 << 10, ChunkBytes: 20_000}, true))
	})
}

func TestSoak(t *testing.T) {
	transporttest.Soak(t, factory(Config{MaxDelay: 100 * time.Microsecond}, true))
}
