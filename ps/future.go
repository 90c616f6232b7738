package ps

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Future is a push, pull or both under way.
type Future struct {
	w     *Worker
	op    op
	parts []*subrequest

	answer  Answer
	version int64 // the lowest version of its blocks, -1 before the first answer
	err     error

	// Of a request for values with backup workers: the blocks, where the values go, and the version of each block.
	blocks   []block
	dst      []byte
	versions []int64
}

// Answer is what the servers said to a request.
type Answer struct {
	Version int64 // updates that the values contain, the fewest of all blocks; in Sync mode all blocks contain as many
	Step    int64 // the shared global step: of a push that counts a step or whose table has a part on ps 0; with backup workers also of a pull of such a table
	Dropped bool  // some server did not use the gradient: its step was over
	forever bool
	lost    []int
	absent  []int
}

// subrequest is the part of a request that goes to one server and concerns one block: at most four
// messages. It is reused when it is done.
type subrequest struct {
	future *Future
	server int
	block  *block // nil: no table is concerned
	seq    uint32
	out    []byte // frame to the server
	in     []byte // frame from the server
	dst    []byte // where the values go, nil if none are asked for

	request, requestPayload mpi.Request // to the server
	reply, replyPayload     mpi.Request // from the server
	done                    bool
}

// issue starts a subrequest. When the server's window is full it first finishes
// the oldest.
func (w *Worker) issue(ctx context.Context, f *Future, server int, b *block, h header, src, dst []byte) error {
	if lane := w.lanes[server]; len(lane) >= w.cfg.Window {
		if err := lane[0].finish(ctx); err != nil {
			return err
		}
	}
	seq, err := w.number(server)
	if err != nil {
		return err
	}
	p := w.subrequest()
	*p = subrequest{future: f, server: server, block: b, out: p.out, in: p.in, dst: dst, seq: seq}
	h.config, h.seq = w.config, p.seq
	if b != nil {
		h.table, h.block, h.count = uint32(b.table), uint32(b.index), uint32(b.elems())
	}
	rank := w.cfg.Cluster.Servers[server]
	p.reply = mpi.Irecv(w.comm, p.in, rank, w.tags.reply(p.seq))
	if len(dst) > inlineBytes {
		p.replyPayload = mpi.Irecv(w.comm, dst, rank, w.tags.replyPayload(p.seq))
	}
	n := headerBytes
	apart := len(src) > inlineBytes
	if !apart {
		h.inline = uint32(len(src))
		n += copy(p.out[headerBytes:], src)
	}
	h.encode(p.out)
	p.request = mpi.Isend(w.comm, p.out[:n], rank, tagRequest)
	if apart {
		p.requestPayload = mpi.Isend(w.comm, src, rank, w.tags.requestPayload(p.seq))
	}
	f.parts = append(f.parts, p)
	w.lanes[server] = append(w.lanes[server], p)
	return nil
}

func (w *Worker) subrequest() *subrequest {
	if n := len(w.free); n > 0 {
		p := w.free[n-1]
		w.free = w.free[:n-1]
		return p
	}
	return &subrequest{out: aligned(frameBytes), in: aligned(frameBytes)}
}

// Wait returns when every server has answered. With backup workers it pulls again until the values of all blocks
// are of one version: a worker whose answers take longer than a step of the others may have to pull until the
// others pause or end. The buffers are the caller's again, unless the error wraps mpi.ErrInFlight. When ctx ends
// first, the request is given up and the worker can only Finish. Waiting twice returns the same.
func (f *Future) Wait(ctx context.Context) (Answer, error) {
	f.collect(ctx)
	f.level(ctx)
	f.answer.Version = f.version
	return f.answer, f.err
}

// collect finishes the subrequests under way.
func (f *Future) collect(ctx context.Context) {
	for _, p := range f.parts {
		if p.future != f { // finished earlier, to make room; it may be in use again
			continue
		}
		if err := p.finish(ctx); err != nil && f.err == nil {
			f.err = err
		}
	}
	f.parts = nil
}

// level pulls again, with backup workers. Servers do not wait for a slow worker, so the blocks of one answer can be
// of different versions: the older blocks are pulled again until all are of the newest version. Each such pull
// ends: the workers that made a step on one server have sent their gradients for it to the other servers, too.
func (f *Future) level(ctx context.Context) {
	for f.err == nil && f.versions != nil {
		newest := slices.Max(f.versions)
		if f.version = slices.Min(f.versions); f.version == newest {
			break
		}
		for i, version := range f.versions {
			if version == newest || f.err != nil {
				continue
			}
			b := &f.blocks[i]
			size := b.typ.Size()
			f.err = f.w.issue(ctx, f, b.server, b, f.w.pullHeader(b, 0, newest), nil, f.dst[b.begin*size:b.end*size])
		}
		f.collect(ctx)
	}
	f.versions = nil
}

// finish waits for the answer to a subrequest and takes it in.
func (p *subrequest) finish(ctx context.Context) error {
	if p.done {
		return p.future.err
	}
	f, w := p.future, p.future.w
	p.done = true
	p.leave()
	if w.err != nil {
		f.err = p.giveUp(w.err)
		return f.err
	}
	status, err := p.reply.Wait(ctx)
	var h header
	var payload []byte
	if err == nil {
		payload, err = h.decode(p.in[:min(status.Bytes, len(p.in))])
	}
	if err == nil {
		err = p.check(&h, payload)
	}
	if err == nil && !p.replyPayload.Null() {
		_, err = p.replyPayload.Wait(ctx)
		p.replyPayload = mpi.Request{}
	}
	for _, r := range []mpi.Request{p.request, p.requestPayload} {
		if err == nil {
			_, err = r.Wait(ctx)
		}
	}
	if err != nil {
		f.err = p.giveUp(w.broke(ctx, f.op, p.server, err))
		return f.err
	}
	p.take(&h, payload)
	delete(w.numbers.inUse, request{p.server, p.seq})
	p.future = nil
	w.free = append(w.free, p)
	return nil
}

// check compares an answer with its request.
func (p *subrequest) check(h *header, payload []byte) error {
	f := p.future
	switch {
	case h.op != opReply || h.seq != p.seq:
		return fmt.Errorf("%v %d in answer to request %d", h.op, h.seq, p.seq)
	case h.status == statusFailed:
		return &Error{Op: f.op.String(), Err: ErrFailed, Detail: string(payload)}
	case h.status == statusRefused:
		rank := f.w.cfg.Cluster.Servers[p.server]
		return &Error{Op: f.op.String(), Role: f.w.cfg.Cluster.Role(rank), Rank: rank, Host: f.w.comm.Host(rank), Err: ErrRefused, Detail: string(payload)}
	case p.dst != nil && p.replyPayload.Null() && len(payload) != len(p.dst):
		return fmt.Errorf("%d bytes of values where %d were asked for", len(payload), len(p.dst))
	}
	return nil
}

// take stores what the answer says.
func (p *subrequest) take(h *header, payload []byte) {
	f, w := p.future, p.future.w
	if p.dst != nil && len(p.dst) <= inlineBytes {
		copy(p.dst, payload)
	}
	if b := p.block; b != nil {
		if f.version < 0 || h.version < f.version {
			f.version = h.version
		}
		if f.versions != nil {
			f.versions[b.index] = h.version
		}
		if (f.op == opPull || f.op == opPushPull) && h.slot == 0 || h.flags&flagDropped != 0 {
			next := &w.next[b.table][b.index]
			*next = max(*next, h.version) // gradients may have been sent since
		}
	}
	if h.flags&flagDropped != 0 {
		f.answer.Dropped = true
	}
	if h.flags&flagStep != 0 && p.server == 0 {
		f.answer.Step = h.aux
		w.global = h.aux
	}
	if h.flags&flagStop != 0 {
		if p.server > 0 {
			w.wish = true
		} else if h.flags&flagStep != 0 {
			w.stopped = true
		}
	}
	if (f.op == opDone || f.op == opBarrier) && p.server == 0 {
		f.answer.forever = h.flags&flagForever != 0
		f.answer.lost, f.answer.absent = decodeAbsent(payload)
	}
}

// leave takes the subrequest out of its server's window.
func (p *subrequest) leave() {
	w := p.future.w
	lane := w.lanes[p.server]
	for i, q := range lane {
		if q == p {
			w.lanes[p.server] = append(lane[:i], lane[i+1:]...)
			return
		}
	}
}

// giveUp takes back the buffers of a subrequest that failed because of err, and adds mpi.ErrInFlight to err where a
// peer may still be using one.
func (p *subrequest) giveUp(err error) error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, r := range []mpi.Request{p.reply, p.replyPayload, p.request, p.requestPayload} {
		if r.Null() {
			continue
		}
		if _, left := r.Wait(ended); errors.Is(left, mpi.ErrInFlight) && !errors.Is(err, mpi.ErrInFlight) {
			err = errors.Join(err, left)
		}
	}
	return err
}
