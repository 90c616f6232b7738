package memcopy

const lineBytes = 64

// ownFrom is the shortest copy that is quicker by Owning than by copy.
const ownFrom = 512

// Owning copies as many bytes as the shorter has from src, which does not overlap dst, to dst, of which another processor
// had the lines last. A processor writes in order, and itself asks for few lines ahead of the one that it waits for. Here eight are
// asked for ahead: 1 KiB for a far reader took 20 % less time so, and a window of 4 KiB up to 40 %.
func Owning(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n < ownFrom {
		return copy(dst, src)
	}
	owning(dst[:n], src[:n])
	return n
}

// OwnAhead asks for the lines of memory that this processor will write soon and another one had last, and does
// not wait for them.
func OwnAhead(mem []byte) {
	if len(mem) > 0 {
		ownAhead(&mem[0], (len(mem)+lineBytes-1)/lineBytes)
	}
}
