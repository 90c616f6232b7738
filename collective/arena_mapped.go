package collective

import (
	"context"
	"slices"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/internal/procmem"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Buffers from mpi.Alloc can be mapped by all ranks of the host. A direct collective reads them as its own memory: that
// takes a third of the time in which the kernel copies them, and what is to be combined is not copied at all. Then direct
// beats the pieces of the arena, too. But all ranks must do a collective in the same way, and none knows the others'
// buffers. So each votes in its slots, where it also votes about the pace, whether its buffers in the last long collectives
// were from mpi.Alloc. A buffer that turns out not to be is read by the kernel. Vectors of a few KiB, which would be copied
// twice through slots, are treated in the same way. They have votes of their own, since a program's short vectors may be
// other ones than its long ones.

// buffer is where a buffer lies, as ranks show it to each other in a slot.
type buffer struct {
	address     uint64 // in the owner's memory
	slab        uint64 // of mpi.Location; 0: it cannot be mapped
	offsetBytes uint64
}

// Words of a slot of a direct collective, which shows the rank's two buffers, and words of a buffer.
const (
	bufferAddress = iota
	bufferSlab
	bufferOffset
	bufferWords

	sendAt = slotHead
	recvAt = sendAt + bufferWords
)

// bufferOf says where a buffer lies.
func (m *meeting) bufferOf(b []byte) buffer {
	at, _ := mpi.Locate(m.comm, b)
	return buffer{uint64(procmem.AddressOf(b)), at.Slab, uint64(at.OffsetBytes)}
}

// length says whether the vectors of a collective fit slots.
type length int

const (
	long length = iota
	short
	lengths
)

// mappable reports whether the ranks have agreed that buffers of such collectives are mapped.
func (m *meeting) mappable() bool { return m.allMapped[m.entry.length] }

// noteBuffers notes whether the others could map what they need of this rank's buffers, if anything.
func (m *meeting) noteBuffers() {
	if !m.entry.readsMapped && !m.entry.farMapped {
		return
	}
	read := m.contribution()
	_, send := mpi.Locate(m.comm, read)
	_, recv := mpi.Locate(m.comm, m.recv)
	switch {
	case len(read) > 0 && !send || m.entry.kind == plan.Allreduce && !recv || overwrites(m.entry.kind, m.entry.inPlace):
		m.bufferVote[m.entry.length] = heapVote
	case len(read) > 0:
		m.bufferVote[m.entry.length] = mappedVote
	}
}

// keptSlabs is how many pieces of a rank's memory stay mapped: enough for the buffers of a program that uses the same ones
// again and again. What the rank has freed takes no memory here, but for huge pages.
const keptSlabs = 8

// view is memory of a rank, mapped.
type view struct {
	slab    uint64
	mapping *mpi.Mapping // nil: it could not be mapped
}

// mapped is n bytes of a rank's buffer as memory of this process, until other memory of the rank is asked for;
// nil if it cannot be mapped.
func (m *meeting) mapped(ctx context.Context, rank, buffer, at, n int) []byte {
	words := m.parts[rank][slot(m.turn)+buffer:][:bufferWords]
	if words[bufferSlab] == 0 {
		return nil
	}
	v := m.viewOf(ctx, rank, words[bufferSlab])
	if v.mapping == nil {
		return nil
	}
	mem, from := v.mapping.Bytes(), int(words[bufferOffset])+at
	if from < 0 || from > len(mem)-n {
		return nil
	}
	return mem[from : from+n]
}

// viewOf maps memory of a rank, unless that has been done or tried. The views are ordered by their last use.
func (m *meeting) viewOf(ctx context.Context, rank int, slab uint64) view {
	views := m.views[rank]
	i := slices.IndexFunc(views, func(v view) bool { return v.slab == slab })
	if i == 0 {
		return views[0]
	}
	var v view
	if i > 0 {
		v = views[i]
		views = slices.Delete(views, i, i+1)
	} else {
		mapping, err := m.mapUntilOff(ctx, rank, slab)
		if err != nil {
			m.sleeper.state.config.log().Warn("a rank's memory is read by the kernel", "comm", m.comm.Name(), "rank", rank, "err", err)
		}
		v = view{slab, mapping}
		if len(views) == keptSlabs {
			views[keptSlabs-1].release()
			views = views[:keptSlabs-1]
		}
	}
	m.views[rank] = slices.Insert(views, 0, v)
	return v
}

// mapUntilOff maps memory of a rank. It waits for that rank's answer no longer than until collectives are called off: the
// rank may have been stopped.
func (m *meeting) mapUntilOff(ctx context.Context, rank int, slab uint64) (*mpi.Mapping, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	off := m.sleeper.state.off
	defer context.AfterFunc(off, func() { end(context.Cause(off)) })()
	return m.comm.Map(ctx, rank, slab)
}

func (v view) release() {
	if v.mapping != nil {
		v.mapping.Release()
	}
}

// dropViews gives all mapped memory back.
func (a *arena) dropViews() {
	for _, views := range a.views {
		for _, v := range views {
			v.release()
		}
	}
	a.views = nil
}

// mappedBytes is what is copied in some 0.1 ms.
const mappedBytes = 1 << 20

// copyMapped copies a block of the result out of mapped memory or out of this rank's own, in parts of mappedBytes, so that
// Go's scheduler is not kept waiting.
func (m *meeting) copyMapped(dst, src []byte) {
	for len(src) > 0 {
		n := min(mappedBytes, len(src))
		m.put(dst[:n], src[:n])
		dst, src = dst[n:], src[n:]
	}
}

// put copies a part of the result to where it belongs.
func (m *meeting) put(dst, src []byte) { memcopy.Piece(dst, src, len(m.recv), len(m.parts)) }
