package tcp_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/transport/tcp"
	"github.com/fisterra-hpc/fisterra/mpi/transport/transporttest"
)

func factory(t *testing.T, n int) []transporttest.Rank {
	ranks := make([]transporttest.Rank, n)
	for i := range ranks {
		set := transporttest.NewSet(t)
		p, err := tcp.Open(tcp.Config{Rank: i, Size: n, Job: fmt.Sprintf("%s.0", t.Name()), Host: "127.0.0.1",
			Secret: bytes.Repeat([]byte{5}, wire.SecretBytes), Set: set, ConnectTimeout: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		p.SetLayout([32]byte{})
		ranks[i] = transporttest.Rank{Provider: p, Set: set}
	}
	return ranks
}

func TestConformance(t *testing.T) { transporttest.Run(t, factory) }

func TestSoak(t *testing.T) { transporttest.Soak(t, factory) }
