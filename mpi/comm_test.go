package mpi

import "testing"

// TestRankOf: also numbers that are no world ranks are translated, to no rank.
func TestRankOf(t *testing.T) {
	for name, c := range map[string]*Comm{
		"identity": newComm(&World{}, nil, "c", 0, []int32{0, 1, 2}, 4),
		"turned":   newComm(&World{}, nil, "c", 0, []int32{2, 0, 1}, 4),
	} {
		for rank, world := range c.group {
			if got := c.RankOf(int(world)); got != rank {
				t.Errorf("%s: world rank %d is rank %d, want %d", name, world, got, rank)
			}
		}
		for _, world := range []int{-1, 3, 1 << 32, 1<<32 + 1} {
			if got := c.RankOf(world); got != -1 {
				t.Errorf("%s: world rank %d is rank %d", name, world, got)
			}
		}
	}
}
