package mpi

import (
	"context"
	"encoding/binary"
	"fmt"
)

// parts are memory of all members of a communicator, as one of them sees it.
type parts struct {
	lengths []int    // elements, by rank
	direct  [][]byte // by rank: its part if that is in reach, as the own one is; else nil
}

// shareParts tells all members where this rank's part is and of which kind its elements are, and maps the others' parts.
// A part in memory from Alloc is in reach of the ranks of its host. What this rank exports and maps for that is in held,
// also after an error.
func (k *collectiveCall) shareParts(ctx context.Context, part []byte, elem ElemKind, elemBytes int, held *heldMemory) (p parts, err error) {
	c := k.c
	const words = 5 // length, kind of element, handle (its length and up to 8 bytes), offset
	mine := [words]uint64{uint64(len(part) / elemBytes), uint64(elem)}
	if mapper := c.dev.mapper(); mapper != nil {
		s, handle, offset, err := held.memory.export(mapper, part)
		if err != nil {
			c.world.log.Warn("memory is not shared with the ranks of this host", "comm", c.name, "err", err)
		}
		if len(handle) <= 8 {
			var b [8]byte
			copy(b[:], handle)
			mine[2], mine[3], mine[4] = uint64(len(handle)), nativeWord(b), uint64(offset)
		}
		held.slab = s
	}
	all := make([]uint64, words*c.Size())
	copy(all[c.rank*words:], mine[:])
	if err := k.allgather(ctx, all, words); err != nil {
		return p, err
	}
	p = parts{make([]int, c.Size()), make([][]byte, c.Size())}
	for r := range c.Size() {
		theirs := all[r*words : (r+1)*words]
		if theirs[1] != uint64(elem) {
			return p, c.fail(k.kind.String(), r, AnyTag, ErrMismatch, fmt.Sprintf("elements are %v there, %v here", ElemKind(theirs[1]), elem))
		}
		if theirs[0] > uint64(maxMessageBytes/elemBytes) {
			return p, c.fail(k.kind.String(), r, AnyTag, ErrMismatch, fmt.Sprintf("%d elements there, which no memory holds", theirs[0]))
		}
		p.lengths[r] = int(theirs[0])
		handle := nativeBytes(theirs[3])
		switch {
		case r == c.rank:
			p.direct[r] = part
		case theirs[2] > 0 && theirs[0] > 0:
			p.direct[r] = k.reach(ctx, r, handle[:min(theirs[2], 8)], int(theirs[4]), p.lengths[r]*elemBytes, held)
		}
	}
	// Nobody may free its memory before all have mapped it.
	return p, k.barrier(ctx)
}

// reach maps n bytes of a rank that shares memory with this one; nil if it does not.
func (k *collectiveCall) reach(ctx context.Context, rank int, handle []byte, offset, n int, held *heldMemory) []byte {
	world := int(k.c.group[rank])
	mapper := k.c.dev.mapperOf(world)
	if mapper == nil {
		return nil
	}
	m, err := held.memory.importFrom(ctx, mapper, world, handle)
	if err == nil {
		held.mapped = append(held.mapped, m)
	}
	if err != nil || offset < 0 || n < 0 || n > len(m.mem)-offset {
		k.c.world.log.Warn("a rank's memory is not in reach", "comm", k.c.name, "rank", world, "err", err)
		return nil
	}
	return m.mem[offset : offset+n]
}

// nativeWord and nativeBytes carry the bytes of a handle in a number.
func nativeWord(b [8]byte) uint64 { return binary.NativeEndian.Uint64(b[:]) }

func nativeBytes(w uint64) (b [8]byte) {
	binary.NativeEndian.PutUint64(b[:], w)
	return b
}
