package mpi

import (
	"math/big"
	"runtime"

	"golang.org/x/sys/unix"
)

// Which processors the ranks of a host have between them: ranks that must take
// turns on one wait in other ways, and pay for other things.

// processors names those that this process may run on, as a hexadecimal mask
// like those of taskset(1); "" where the kernel does not say.
func processors() string {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return ""
	}
	mask := new(big.Int)
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			mask.SetBit(mask, i, 1)
		}
	}
	return mask.Text(16)
}

// ranksPerCore is how many ranks of each host share a processor, in the mean and
// at least 1. Hosts whose ranks do not say are left out.
func ranksPerCore(members []Member) map[string]float64 {
	type host struct {
		ranks int
		mask  *big.Int
	}
	hosts := map[string]*host{}
	for _, m := range members {
		if m.Processors == "" {
			continue
		}
		mask, ok := new(big.Int).SetString(m.Processors, 16)
		if !ok {
			continue
		}
		h := hosts[m.Host]
		if h == nil {
			h = &host{mask: new(big.Int)}
			hosts[m.Host] = h
		}
		h.ranks++
		h.mask.Or(h.mask, mask)
	}
	shares := make(map[string]float64, len(hosts))
	for name, h := range hosts {
		cores := 0
		for _, w := range h.mask.Bits() {
			for ; w != 0; w &= w - 1 {
				cores++
			}
		}
		shares[name] = max(1, float64(h.ranks)/float64(max(1, cores)))
	}
	return shares
}

// crowded: the ranks of this host outnumber its processors.
func (w *World) crowded() bool {
	if share, ok := w.shares[w.members[w.rank].Host]; ok {
		return share > 1
	}
	return w.localSize > runtime.NumCPU()
}

// RanksPerCore is how many ranks share a processor, in the mean, on the host where
// it is most of all hosts with members of the communicator; 1 where each has its own or nothing is
// known. All members get the same answer.
func (c *Comm) RanksPerCore() float64 {
	most := 1.0
	if len(c.world.shares) == 0 {
		return most
	}
	for _, r := range c.group {
		most = max(most, c.world.shares[c.world.members[r].Host])
	}
	return most
}
