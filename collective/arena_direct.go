package collective

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/fence"
	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/internal/procmem"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// direct is a collective in which every rank reads what it needs straight out of the others'
// buffers, by the kernel: one copy, where pieces of the arena take one into them and one out. Ranks
// show each other where their buffers are, read, and wait until nobody reads theirs
// any more.
//
// Where only one of two ranks gives (the root and each other rank of a gather or scatter, or the two ranks of a broadcast)
// and the buffers are not mapped, a message is sent instead, since both ranks copy that together (package shm).
//
// In an allreduce each rank reduces a slice, and then reads the others' results. Of two ranks each reduces the whole
// vector: the kernel has as many bytes to read, and a crossing is saved.
//
// Nothing here writes to another rank's memory, so that a rank that was stopped can spoil nothing when it goes on. What a
// rank has read of a buffer that its owner gave up meanwhile is thrown away.
//
// Cost: what a rank gets is copied or combined once, with a system call for each half MiB; two
// crossings, three for an allreduce of more than two ranks.
//
// After Ma, Bosilca, Bouteiller, Dongarra, "Kernel-assisted and topology-aware MPI collective communications on
// multicore/many-core platforms", 2013.
type direct struct {
	*meeting
	reduced uint64 // step after which this rank's slice of an allreduce stands in recv
	read    uint64 // step after which this rank has read what it needs
}

const (
	// scratchBytes of another rank's operand are combined at a time: they stay in the core's own caches. A
	// call of the kernel costs more between ranks that are far from each other, some µs.
	scratchBytes = 256 << 10
)

// reads reports whether a collective can be done by direct.
func reads(k plan.Kind) bool { return k != plan.Barrier && k != plan.Scan && k != plan.Exscan }

// gathers reports whether only the root takes what the others show. Through pieces the others leave as soon as they have
// written their part, however far away the root is; if the root read their buffers, they would wait for it. Sixteen ranks
// reduce 64 KiB in 14 µs through pieces, mean over the ranks, and directly in 55.
func gathers(k plan.Kind) bool { return k == plan.Gather || k == plan.Reduce }

// readsFar reports whether a collective that goes through pieces while the ranks are near is done by direct while they are
// far, also where the kernel has to copy. That holds for two ranks; for a scatter, which is messages then; and where each
// rank reads one other's buffer at a time, from farBytes on. Ranks that read the buffer of the same rank at the same time
// take turns, since the kernel counts the users of a page: a bcast of 256 KiB among sixteen took 331 µs so, and takes 44
// through pieces. What more than two ranks combine is read once more than it is through pieces.
func readsFar(p *plan.Problem) bool {
	switch p.Kind {
	case plan.Scatter:
		return true
	case plan.Allgather, plan.Alltoall:
		return p.Size == 2 || p.TotalBytes() > farBytes*p.Size
	}
	return p.Size == 2
}

// farBytes: if a rank needs more than this from each other rank, the kernel, whose every call takes some µs, reads it in
// less time than it takes through pieces.
const farBytes = 16 << 10

func (m *meeting) direct(ctx context.Context) error {
	d := direct{meeting: m, reduced: m.steps + 1, read: m.steps + 2}
	m.steps += 2
	m.noteBuffers() // before the input is copied
	result := m.recv
	switch {
	case overwrites(m.entry.kind, m.entry.inPlace):
		m.saved = append(m.saved[:0], m.send...)
		m.send = m.saved
	case m.entry.kind == plan.Allreduce && m.entry.inPlace && !m.slices(): // the others read the input until the end
		m.saved = slices.Grow(m.saved[:0], len(result))[:len(result)]
		m.recv = m.saved
	}
	m.buffers = [2]buffer{m.bufferOf(m.contribution()), m.bufferOf(m.recv)}
	m.show(unsafe.Slice((*byte)(unsafe.Pointer(&m.buffers)), unsafe.Sizeof(m.buffers)))
	err := d.run(ctx)
	switch {
	case err != nil:
		atomic.StoreUint64(&m.parts[m.me][withdrawn], m.turn)
	case len(result) > 0 && &result[0] != &m.recv[0]:
		memcopy.Copy(result, m.recv)
	}
	runtime.KeepAlive(m.send)
	runtime.KeepAlive(result)
	return err
}

func (d *direct) run(ctx context.Context) error {
	if err := d.compareCalls(ctx); err != nil {
		return err
	}
	if d.passes() {
		return d.pass(ctx)
	}
	if d.entry.kind.Reduces() {
		if err := d.reduce(ctx); err != nil {
			return err
		}
	}
	if d.slices() {
		d.raise(flagShown, d.reduced)
	}
	if !d.entry.kind.Reduces() || d.slices() {
		if err := d.fetch(ctx); err != nil {
			return err
		}
	}
	d.raise(flagTaken, d.read)
	readers := d.entry.readers()
	for _, r := range d.others {
		if readers.has(r) {
			if err := d.reach(ctx, r, flagTaken, d.read, readers); err != nil {
				return err
			}
		}
	}
	return nil
}

// overwrites reports whether a result in place of the input would overwrite, block by block, what others have still to read.
func overwrites(k plan.Kind, inPlace bool) bool {
	return inPlace && (k == plan.Alltoall || k == plan.ReduceScatter)
}

// slices reports whether each rank reduces a slice for all.
func (m *meeting) slices() bool {
	return m.entry.kind == plan.Allreduce && slicesAllreduce(len(m.parts), m.entry.count*m.entry.typ.size, m.mappable())
}

// slicesAllreduce reports whether an allreduce of n bytes is done in slices. Two ranks that each reduce the whole vector
// need one crossing less. Where they map the vectors, they read less in slices, which pays if the vector is longer than the
// cores' own caches.
func slicesAllreduce(ranks, n int, mapped bool) bool {
	const caches = 512 << 10
	return ranks > 2 || mapped && n > caches
}

// passes reports whether messages are sent instead of reading: blocks go between the root and the others only, and whoever
// reads one must ask the kernel.
func (d *direct) passes() bool {
	return !d.mappable() && passes(d.entry.kind, len(d.parts))
}

// passes reports whether a collective is one message between the root and each of the others.
func passes(kind plan.Kind, ranks int) bool {
	switch kind {
	case plan.Scatter, plan.Gather:
		return true
	case plan.Bcast: // among more ranks there are better ways
		return ranks == 2
	}
	return false
}

// pass moves the blocks that the root has for the others, or they for it.
func (d *direct) pass(ctx context.Context) error {
	e, x := d.entry, d.sleeper
	shadow, tag := d.comm.Shadow(), firstTag+int(d.seq%tagsOf(d.comm))
	gives := (d.me == e.root) == (e.kind != plan.Gather)
	for _, r := range d.others {
		switch {
		case d.me != e.root && r != e.root:
			continue
		case gives:
			x.outgoing = append(x.outgoing, mpi.Isend(shadow, d.given(r), r, tag))
		default:
			out, _, _ := d.fetched(r)
			x.receives = append(x.receives, mpi.Irecv(shadow, out, r, tag))
		}
		x.to = append(x.to, int32(r))
	}
	if e.kind != plan.Bcast && d.me == e.root && !e.inPlace {
		out, _, at := d.fetched(d.me)
		memcopy.Copy(out, d.contribution()[at:])
	}
	under := x.receives
	if gives {
		under = x.outgoing
	}
	for i, r := range under {
		under[i] = mpi.Request{}
		if err := d.finish(ctx, int(x.to[i]), r); err != nil {
			if inFlight := x.abandon(); inFlight != nil {
				err = inFlightToo(err, inFlight)
			}
			return err
		}
	}
	x.receives, x.outgoing, x.to = x.receives[:0], x.outgoing[:0], x.to[:0]
	return nil
}

// given is what this rank has for another.
func (d *direct) given(r int) []byte {
	block := d.contribution()
	if d.entry.kind == plan.Scatter {
		from, to := d.block(r)
		block = block[from:to]
	}
	return block
}

// fetch gets the blocks of this rank's result, the next rank's first, so that not all ranks read the same one's at once.
func (d *direct) fetch(ctx context.Context) error {
	first, end := d.entry.sources(d.me)
	for i := 1; i <= len(d.parts); i++ {
		r := (d.me + i) % len(d.parts)
		if r < first || r >= end || r == d.me && (d.entry.inPlace || d.slices()) {
			continue
		}
		out, buffer, at := d.fetched(r)
		if r == d.me {
			d.copyMapped(out, d.contribution()[at:][:len(out)])
			continue
		}
		if d.slices() {
			if err := d.reach(ctx, r, flagShown, d.reduced, ranksFrom(first, end)); err != nil {
				return err
			}
		}
		if err := d.readFrom(ctx, r, out, buffer, at); err != nil {
			return err
		}
	}
	return nil
}

// fetched is the place in the result for what this rank needs of rank r, which of r's buffers that is in, and where in it
// that begins.
func (d *direct) fetched(r int) (out []byte, buffer, at int) {
	from, to := d.block(r)
	mine, end := d.block(d.me)
	switch d.entry.kind {
	case plan.Allreduce:
		return d.recv[from:to], recvAt, from
	case plan.Alltoall:
		return d.recv[from:to], sendAt, mine
	case plan.Scatter:
		return d.recv[:end-mine], sendAt, mine
	}
	return d.recv[from:to], sendAt, 0
}

// reduce combines this rank's block of all inputs, a piece at a time, in the order of the ranks.
func (d *direct) reduce(ctx context.Context) error {
	from, to := d.block(d.me)
	out := d.recv
	switch {
	case d.entry.kind == plan.Reduce && d.me != d.entry.root:
		return nil
	case d.slices():
		out = out[from:to]
	case d.entry.kind == plan.Allreduce:
		from, to = 0, len(out)
	}
	for at := from; at < to; at += scratchBytes {
		n := min(scratchBytes, to-at)
		if err := d.combine(ctx, out[at-from:][:n], at); err != nil {
			return err
		}
	}
	return nil
}

// combine makes a piece of the result, out of the inputs from byte `at` on.
func (d *direct) combine(ctx context.Context, out []byte, at int) error {
	var sum []byte
	for r := range d.parts {
		next := d.scratch[min(r, 1)][:len(out)]
		if r == d.me {
			next = d.send[at:][:len(out)]
		} else if there := d.mapped(ctx, r, sendAt, at, len(out)); there != nil {
			next = there
		} else if err := d.readByKernel(r, next, sendAt, at); err != nil {
			return d.vouch(ctx, r, err)
		}
		into := d.scratch[0][:len(out)] // out may be this rank's input
		switch r {
		case 0:
			sum = next
			continue
		case len(d.parts) - 1:
			into = out
		}
		d.entry.combine(into, sum, next)
		sum = into
	}
	for r := range d.parts {
		if err := d.vouch(ctx, r, nil); err != nil {
			return err
		}
	}
	return nil
}

// readFrom copies from a byte of a rank's buffer on, unless the rank withdraws it meanwhile or ends.
func (d *direct) readFrom(ctx context.Context, r int, dst []byte, buffer, at int) error {
	if src := d.mapped(ctx, r, buffer, at, len(dst)); src != nil {
		d.copyMapped(dst, src)
		return d.vouch(ctx, r, nil)
	}
	return d.vouch(ctx, r, d.readByKernel(r, dst, buffer, at))
}

func (d *direct) readByKernel(r int, dst []byte, buffer, at int) error {
	src := uintptr(d.parts[r][slot(d.turn)+buffer+bufferAddress]) + uintptr(at)
	return procmem.ReadLong(d.pids[r], dst, src)
}

// vouch returns nil if what this rank has read of a rank's buffer was what that rank showed. err is the error of reading
// it.
func (d *direct) vouch(ctx context.Context, r int, err error) error {
	fence.Loads() // of the buffer
	switch {
	case atomic.LoadUint64(&d.parts[r][withdrawn]) == d.turn, errors.Is(err, unix.ESRCH):
		return d.reach(ctx, r, flagTaken, math.MaxUint64, oneRank(r)) // it never comes so far: this waits for the news of why
	case err != nil:
		return fmt.Errorf("rank %d (%s): %w", r, d.comm.Host(r), err)
	}
	return nil
}

// introduce writes down how the others can read this process's memory.
func introduce(part []uint64) {
	i := procmem.Introduce(&part[introSecret])
	part[introProcess], part[introAddress] = i.Process, i.At
}

// processes finds the ranks' processes; nil if this one cannot read the memory of all. A
// number may name another process in another namespace: only the secret proves it.
func processes(parts []*part) []int {
	pids := make([]int, len(parts))
	for r, part := range parts {
		pids[r] = int(part[introProcess])
		i := procmem.Introduction{Process: part[introProcess], At: part[introAddress], Number: part[introSecret]}
		if !i.Proved() {
			return nil
		}
	}
	return pids
}

// allowReading has the ranks of the arena read each other's memory: all can.
func (a *arena) allowReading(pids []int) {
	a.pids = pids
	a.scratch = [2][]byte{make([]byte, scratchBytes), make([]byte, scratchBytes)}
	var err error
	if a.pace.kernel, _, err = procmem.PerByte(); err != nil {
		a.pace.kernel = math.Inf(1) // nothing is slower
	}
}
