package shm

// claim is the state of an exposure while two ranks copy it: the puller takes units from the front, the exposing rank from
// the back, and neither touches a unit that it has not claimed. One word holds the state, so that a claim is one
// compare-and-swap, and either rank can finish alone when the other is stopped.
//
// Bits 62-63 are the phase. Below them phaseExposed has the generation, and phasePulling and phaseClosed have the two ends,
// in units, 31 bits each.
type claim uint64

type phase uint8

const (
	// phaseFree: the slot is nobody's. After a pull the puller sets it to this phase.
	phaseFree phase = iota
	// phaseExposed: the memory may be pulled.
	phaseExposed
	// phasePulling: units from front to back are still to be claimed.
	phasePulling
	// phaseClosed: nothing more may be claimed; copies under way finish.
	phaseClosed
)

// unitBytes is the granule of claims: a page.
const unitBytes = 4096

const endMask = 1<<31 - 1

func exposed(gen uint32) claim { return claim(phaseExposed)<<62 | claim(gen) }

// ends is a claim in a phase that has two ends.
func ends(p phase, front, back uint32) claim {
	return claim(p)<<62 | claim(front)<<31 | claim(back)
}

func (c claim) phase() phase  { return phase(c >> 62) }
func (c claim) front() uint32 { return uint32(c>>31) & endMask }
func (c claim) back() uint32  { return uint32(c) & endMask }

// closed is c with no more units to claim.
func (c claim) closed() claim { return ends(phaseClosed, c.front(), c.back()) }

// takeFront claims up to n units for the puller.
func (c claim) takeFront(n uint32) (next claim, from, to uint32) {
	from, to = c.front(), min(c.front()+n, c.back())
	return ends(phasePulling, to, c.back()), from, to
}

// takeBack claims up to n units for the exposing rank.
func (c claim) takeBack(n uint32) (next claim, from, to uint32) {
	to = c.back()
	from = c.front()
	if to-from > n {
		from = to - n
	}
	return ends(phasePulling, c.front(), from), from, to
}

// units is how many units n bytes have.
func units(n int) uint32 { return uint32((n + unitBytes - 1) / unitBytes) }

const (
	helpBytes  = 24 << 10 // below this the puller copies alone
	leastBytes = 16 << 10 // smallest claim worth a system call
	mostBytes  = 1 << 20  // largest claim: bounds how long one copy takes
)

// portion is how many of the left unclaimed units, out of total, to claim next. Of a short transfer it is half, so that each
// rank makes one system call; of a long one a third of what is left, so that both ranks finish at the same time although they
// did not start together.
func portion(left, total uint32) uint32 {
	n := left / 3
	if total <= 4*leastBytes*2/unitBytes {
		n = (total + 1) / 2
	}
	return max(leastBytes/unitBytes, min(n, mostBytes/unitBytes))
}
