package mpi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// engine is the device over Fisterra's own providers: it matches messages
// (match.go), runs the eager and rendezvous protocol (protocol.go), and makes
// progress in whoever waits (progress.go). Everything but the atomics is guarded by mu.
type engine struct {
	mu        sync.Mutex
	contended atomic.Int32 // goroutines that want mu while a leader polls

	rank, size int
	log        *slog.Logger

	match  matcher
	ops    opTable
	own    *op // of the blocking receive that needs no queue
	direct *op // own, while it waits for its message; older than all posted receives
	pool   bufferPool

	providers []transport.Provider
	members   []Member
	routes    []*route // by world rank, found on first use
	peers     []*peer  // by world rank, made on first use
	backlog   []*peer  // peers with a non-empty outbox
	unread    []*op    // sends whose exposed memory could not be withdrawn yet
	hdr       transport.Header

	comms    map[uint32]*Comm // by context id, user and shadow
	context  uint32           // next free context id
	doomed   map[uint32]bool  // contexts revoked before they were attached here
	shrinks  map[shrinkID]*shrinkState
	early    []earlyAsk // shrink.go
	handlers [256]func(peer int, h *transport.Header, payload []byte)
	windows  windowTable

	losses  []loss                         // in the order in which they became known
	onLoss  func(rank int, err *lostError) // tells the bootstrap tree and the user; must not block
	closing bool                           // own goodbye said: a closing peer is not a loss
	closed  bool

	progress
}

// route is how a peer is reached.
type route struct {
	provider int // index, -1: none
	reason   string
}

type loss struct {
	rank int
	err  error
}

// peer is what the engine keeps about another rank it has talked to.
type peer struct {
	rank     int
	provider transport.Provider
	memory   transport.Memory // nil: cannot pull
	caps     transport.Caps
	credit   int // bytes that may still be sent eagerly
	owed     int // bytes consumed and not yet credited back
	out      outbox
	lost     error
}

func newEngine(rank, size int, log *slog.Logger) *engine {
	e := &engine{
		rank: rank, size: size, log: log,
		peers:   make([]*peer, size),
		routes:  make([]*route, size),
		comms:   make(map[uint32]*Comm),
		doomed:  make(map[uint32]bool),
		shrinks: make(map[shrinkID]*shrinkState),
	}
	e.own = e.ops.get()
	return e
}

func (e *engine) caps() DeviceCaps {
	c := DeviceCaps{Name: "fisterra", NamesLost: true, CancelsSends: true, SleepsInKernel: true}
	for _, p := range e.providers {
		c.SizesOnly = c.SizesOnly || p.Caps().SizesOnly
	}
	return c
}

func (e *engine) transport(rank int) (name, reason string) {
	if rank == e.rank {
		return "self", "the rank itself"
	}
	e.lock()
	defer e.unlock()
	r := e.route(rank)
	if r.provider < 0 {
		return "none", r.reason
	}
	return e.providers[r.provider].Name(), r.reason
}

// route picks for a peer the first provider that can reach it.
func (e *engine) route(rank int) *route {
	if e.routes[rank] != nil {
		return e.routes[rank]
	}
	r := &route{provider: -1}
	e.routes[rank] = r
	if rank == e.rank {
		r.reason = "the rank itself"
		return r
	}
	var why []string
	for i, p := range e.providers {
		address, ok := e.members[rank].Addresses[p.Name()]
		if !ok {
			why = append(why, p.Name()+": not published by the rank")
			continue
		}
		if err := p.Connect(rank, address); err != nil {
			why = append(why, fmt.Sprintf("not %s: %v", p.Name(), err))
			continue
		}
		r.provider = i
		if p.Caps().SameHost {
			why = append(why, "same host")
		} else {
			why = append(why, "reachable by "+p.Name())
		}
		break
	}
	r.reason = strings.Join(why, "; ")
	return r
}

// peer returns the state of a rank, made on first use.
func (e *engine) peer(rank int) *peer {
	p := e.peers[rank]
	if p != nil {
		return p
	}
	p = &peer{rank: rank}
	r := e.route(rank)
	if r.provider < 0 {
		p.lost = fmt.Errorf("%w: %s", ErrTransport, r.reason)
	} else {
		p.provider = e.providers[r.provider]
		p.memory, _ = p.provider.(transport.Memory)
		p.caps = p.provider.Caps()
		p.credit = p.caps.CreditBytes
	}
	e.peers[rank] = p
	return p
}

// lock takes the world's lock and lets a polling leader know that somebody
// wants it.
func (e *engine) lock() {
	if e.mu.TryLock() {
		return
	}
	e.contended.Add(1)
	e.mu.Lock()
	e.contended.Add(-1)
}

func (e *engine) unlock() { e.mu.Unlock() }

// send is the blocking send. The common case, a small message to a peer with
// an empty outbox and credit left, is one call of the provider.
func (e *engine) send(ctx context.Context, c *Comm, buf []byte, dst, tag int) error {
	world := int(c.group[dst])
	e.lock()
	e.calls++
	if p := e.peers[world]; p != nil && p.out.empty() && c.sound() {
		if n := len(buf); n < p.caps.RendezvousBytes && n+transport.EnvelopeBytes <= p.credit && p.lost == nil {
			e.hdr = transport.Header{Kind: kindEager, Context: c.context, Tag: int32(tag), Bytes: uint64(n)}
			if p.provider.Send(world, &e.hdr, buf) == transport.Sent {
				p.credit -= n + transport.EnvelopeBytes
				e.unlock()
				return nil
			}
		}
	}
	o := e.startSend(c, buf, dst, tag)
	_, err := e.finishWait(ctx, o)
	e.unlock()
	return err
}

// recv is the blocking receive.
func (e *engine) recv(ctx context.Context, c *Comm, buf []byte, src, tag int) (Status, error) {
	e.lock()
	e.calls++
	var o *op
	if e.match.posted == 0 && e.match.unexpected == 0 && e.own.phase == phaseFree && src >= 0 && c.sound() {
		o = e.recvDirect(c, buf, src, tag)
	} else {
		o = e.startRecv(c, buf, src, tag)
	}
	s, err := e.finishWait(ctx, o)
	e.unlock()
	return s, err
}

// recvDirect posts a receive that needs no place in the queues: nothing waits
// to be matched, so it is the oldest receive until it has its message.
func (e *engine) recvDirect(c *Comm, buf []byte, src, tag int) *op {
	o := e.own
	o.gen += 2
	o.kind, o.comm, o.buf, o.peer = opRecv, c, buf, -1
	o.env = envelope{context: c.context, source: c.group[src], tag: int32(tag)}
	o.err = nil
	if p := e.peers[o.env.source]; p != nil && p.lost != nil {
		e.finish(o, p.lost)
		return o
	}
	o.phase = phasePosted
	e.direct = o
	return o
}

// claim finds the receive that takes a message.
func (e *engine) claim(v envelope) *op {
	if o := e.direct; o != nil && o.env.accepts(v) {
		e.direct = nil
		return o
	}
	return e.match.take(v)
}

// unpost takes a posted receive back.
func (e *engine) unpost(o *op) {
	if o == e.direct {
		e.direct = nil
		return
	}
	e.match.withdraw(o)
}

func (e *engine) isend(c *Comm, buf []byte, dst, tag int) Request {
	e.lock()
	e.calls++
	o := e.startSend(c, buf, dst, tag)
	e.unlock()
	return Request{o: o, dev: e, gen: o.gen}
}

func (e *engine) irecv(c *Comm, buf []byte, src, tag int) Request {
	e.lock()
	e.calls++
	o := e.startRecv(c, buf, src, tag)
	e.unlock()
	return Request{o: o, dev: e, gen: o.gen}
}

// finishWait waits for an op that nobody else knows, with the lock held, and
// gives it back.
func (e *engine) finishWait(ctx context.Context, o *op) (Status, error) {
	if !o.finished() {
		if err := e.await(ctx, o); err != nil {
			return e.giveUp(ctx, o)
		}
	}
	return e.collect(o)
}

// collect takes the outcome of a finished op and gives the op back.
func (e *engine) collect(o *op) (Status, error) {
	s, err := o.status, o.err
	if err != nil {
		err = e.describe(o, err)
	}
	if o == e.own {
		o.phase, o.buf = phaseFree, nil
	} else {
		e.ops.put(o)
	}
	return s, err
}

func (e *engine) wait(ctx context.Context, r Request) (Status, error) {
	e.lock()
	defer e.unlock()
	e.calls++
	if r.o.gen != r.gen {
		return Status{}, spent("wait")
	}
	return e.finishWait(ctx, r.o)
}

func (e *engine) test(r Request) (Status, bool, error) {
	e.lock()
	defer e.unlock()
	e.calls++
	if r.o.gen != r.gen {
		return Status{}, true, spent("test")
	}
	if !r.o.finished() {
		e.pollOnce()
	}
	if !r.o.finished() {
		return Status{}, false, nil
	}
	s, err := e.collect(r.o)
	return s, true, err
}

func (e *engine) cancel(r Request) {
	e.lock()
	defer e.unlock()
	if r.o.gen == r.gen && !r.o.finished() {
		e.abort(r.o, ErrCancelled)
	}
}

func (e *engine) doneChan(r Request) <-chan struct{} {
	e.lock()
	defer e.unlock()
	if r.o.gen != r.gen || r.o.finished() {
		return closedChan
	}
	e.watched++
	return r.o.doneChan()
}

func (o *op) doneChan() chan struct{} {
	if o.done == nil {
		o.done = make(chan struct{})
	}
	return o.done
}

func spent(what string) error {
	return &Error{Op: what, Peer: ProcNull, Tag: AnyTag, Err: ErrRequest, Detail: "it has been waited for already"}
}

func (e *engine) waitAny(ctx context.Context, rs []Request) (int, Status, error) {
	e.lock()
	defer e.unlock()
	e.calls++
	any := &anyOf{rs: rs, at: -1}
	if err := e.await(ctx, any); err != nil {
		return -1, Status{}, &Error{Op: "waitany", Peer: ProcNull, Tag: AnyTag, Err: err}
	}
	r := rs[any.at]
	if r.o.gen != r.gen {
		return any.at, Status{}, spent("waitany")
	}
	s, err := e.collect(r.o)
	return any.at, s, err
}

// probe waits for a message and leaves it where it is.
func (e *engine) probe(ctx context.Context, c *Comm, src, tag int) (Status, error) {
	e.lock()
	defer e.unlock()
	e.calls++
	look := &sighting{prober: prober{e: e}, c: c, env: c.envelope(src, tag)}
	if err := e.await(ctx, look); err != nil {
		return Status{}, c.fail("probe", src, tag, err, "")
	}
	return look.status(src, tag)
}

// iprobe looks once, after making some progress if nothing is there.
func (e *engine) iprobe(c *Comm, src, tag int) (Status, bool, error) {
	e.lock()
	defer e.unlock()
	e.calls++
	look := &sighting{prober: prober{e: e}, c: c, env: c.envelope(src, tag)}
	if !look.met() {
		e.pollOnce()
	}
	if !look.met() {
		return Status{}, false, nil
	}
	status, err := look.status(src, tag)
	return status, err == nil, err
}

func (c *Comm) envelope(src, tag int) envelope {
	v := envelope{context: c.context, source: AnySource, tag: int32(tag)}
	if src >= 0 {
		v.source = c.group[src]
	}
	return v
}

// describe makes the caller's error from an op's.
func (e *engine) describe(o *op, err error) error {
	c := o.comm
	what, peer := "send", -1
	if o.kind == opRecv {
		what = "recv"
		if o.env.source >= 0 {
			peer = c.RankOf(int(o.env.source))
		} else if o.peer >= 0 {
			peer = c.RankOf(int(o.peer))
		}
	} else {
		peer = c.RankOf(int(o.peer))
	}
	var detail string
	switch {
	case errors.Is(err, ErrTruncated):
		detail = fmt.Sprintf("%d B into %d B", o.status.Bytes, len(o.buf))
	case errors.Is(err, ErrPeerLost):
		var l *lostError
		if errors.As(err, &l) {
			peer, detail = c.RankOf(l.rank), l.why
			err = ErrPeerLost
		}
	}
	return c.fail(what, peer, int(o.env.tag), err, detail)
}

// lostError carries which rank was lost from the engine to the caller's error.
type lostError struct {
	rank int
	why  string
}

func (l *lostError) Error() string { return fmt.Sprintf("rank %d lost: %s", l.rank, l.why) }
func (l *lostError) Unwrap() error { return ErrPeerLost }

func (e *engine) attach(_ context.Context, c *Comm) error {
	e.lock()
	defer e.unlock()
	for _, m := range []*Comm{c, c.shadow} {
		e.comms[m.context] = m
		if e.doomed[m.context] {
			m.revoked.Store(true)
		}
		for _, l := range e.losses {
			if m.RankOf(l.rank) >= 0 {
				m.unacked++
			}
		}
		e.answerEarly(m.context)
	}
	return nil
}

func (e *engine) detach(c *Comm) {
	e.lock()
	defer e.unlock()
	for _, m := range []*Comm{c, c.shadow} {
		delete(e.comms, m.context)
		for a := e.match.first; a != nil; {
			next := a.seqNext
			if a.env.context == m.context {
				e.discard(a)
			}
			a = next
		}
	}
}

func (e *engine) nextContext() uint32 {
	e.lock()
	defer e.unlock()
	return e.context
}

func (e *engine) claimContext(id uint32) bool {
	e.lock()
	defer e.unlock()
	if id < e.context {
		return false
	}
	e.context = id + contextStep
	return true
}
