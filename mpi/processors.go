package mpi

import (
	"cmp"
	"math/big"
	"math/bits"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Which processors the ranks of a host have between them: ranks that take turns on a processor wait in other ways
// than ranks that have one each, and other things cost them time.

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

// mask is the member's processors, if they are known.
func (m *Member) mask() (*big.Int, bool) { return new(big.Int).SetString(m.Processors, 16) }

// ranksPerCore is how many ranks of each host share a processor, in the mean and
// at least 1. Hosts whose ranks do not say are left out.
func ranksPerCore(members []Member) map[string]float64 {
	type host struct {
		ranks int
		mask  *big.Int
	}
	hosts := map[string]*host{}
	for _, m := range members {
		mask, ok := m.mask()
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
		shares[name] = max(1, float64(h.ranks)/float64(max(1, ones(h.mask))))
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

// homes are the processors that the ranks of a host should run on, by rank: each alone where all can have their own, else
// with as few others as can be. It is empty if nothing is known.
type homes map[int]int

// homesOf finds the homes of a host's ranks. All ranks of the host come to the same result: the ranks with the smallest
// choice of processors choose first, and each takes the first of the processors that the fewest have taken.
func homesOf(host string, members []Member) homes {
	type seeker struct {
		rank int
		mask *big.Int
	}
	var seekers []seeker
	for _, m := range members {
		if m.Host != host {
			continue
		}
		mask, ok := m.mask()
		if !ok {
			return nil
		}
		seekers = append(seekers, seeker{m.Rank, mask})
	}
	slices.SortStableFunc(seekers, func(a, b seeker) int { return cmp.Compare(ones(a.mask), ones(b.mask)) })
	taken := map[int]int{} // how many ranks have it
	h := make(homes, len(seekers))
	for _, s := range seekers {
		least := -1
		for n := range s.mask.BitLen() {
			if s.mask.Bit(n) == 1 && (least < 0 || taken[n] < taken[least]) {
				least = n
			}
		}
		taken[least]++
		h[s.rank] = least
	}
	return h
}

// of is the home of a rank; -1 if it is not known.
func (h homes) of(rank int) int {
	if n, ok := h[rank]; ok {
		return n
	}
	return -1
}

// apart reports whether two ranks are known to run on different processors of this host.
func (h homes) apart(a, b int) bool {
	one, known := h[a]
	other, alsoKnown := h[b]
	return known && alsoKnown && one != other
}

// most is the largest number of ranks that share a processor.
func (h homes) most() (n int) {
	ranks := map[int]int{}
	for _, p := range h {
		ranks[p]++
		n = max(n, ranks[p])
	}
	return n
}

// ones counts the processors of a mask.
func ones(mask *big.Int) (n int) {
	for _, w := range mask.Bits() {
		n += bits.OnesCount(uint(w))
	}
	return n
}

// Processor is the number of the processor that a rank of this host should run on, alone where each rank of the
// host can have one, else with as few others as can be; -1 for ranks of other hosts, and if nothing is known. No rank is
// bound to it. All ranks of the host get the same answer. Not collective.
func (c *Comm) Processor(rank int) int { return c.world.homes.of(int(c.group[rank])) }

// RanksPerCore is how many ranks share a processor, in the mean over a host, on the most crowded host that
// has members of the communicator; 1 where each rank has its own or nothing is known. All members get the same answer.
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

// TakeTurns reports whether two ranks have only one processor between them. It is false for ranks of different hosts, and where
// nothing is known. All ranks get the same answer. Not collective.
func (c *Comm) TakeTurns(a, b int) bool {
	return takeTurns(c.world.members, int(c.group[a]), int(c.group[b]))
}

func takeTurns(members []Member, a, b int) bool {
	one, known := members[a].mask()
	other, alsoKnown := members[b].mask()
	return known && alsoKnown && a != b && members[a].Host == members[b].Host && ones(one.Or(one, other)) == 1
}
