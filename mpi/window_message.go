package mpi

import (
	"context"
	"maps"
	"slices"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// One-sided operations on memory out of reach are messages of kindWindow. The
// header's Context is the window, Tag the operation, Token the question (for the
// answer to name), Aux the index or, in an answer, the offset in bytes. Messages
// from one rank to another keep their order, so the answer to windowFlush says that all
// before it has been done.
type windowCode uint8

const (
	windowPut windowCode = 1 + iota
	windowAccumulate
	windowGet    // Bytes: how many
	windowFetch  // payload: value
	windowSwap   // payload: compare, next
	windowFlush  // answered when its turn comes
	windowLock   // acc: mode; answered when granted
	windowUnlock // not answered
	windowCancel // gives up the wish for a lock that has this token; not answered
	windowAnswer // payload: what was asked for
	windowFailed // the question made no sense there
)

// windowHeader is what the header of a message of kindWindow says.
type windowHeader struct {
	code   windowCode
	acc    Accumulation
	token  uint64
	at     int
	nBytes int
}

func (h windowHeader) header(id uint32) transport.Header {
	return transport.Header{Kind: kindWindow, Context: id, Tag: int32(h.code) | int32(h.acc)<<8,
		Token: h.token, Aux: uint64(h.at), Bytes: uint64(h.nBytes)}
}

func windowHeaderOf(h *transport.Header) windowHeader {
	return windowHeader{code: windowCode(h.Tag), acc: Accumulation(h.Tag >> 8), token: h.Token, at: int(h.Aux), nBytes: int(h.Bytes)}
}

// anyWindow is a window of any element.
type anyWindow interface {
	// take handles a message from a world rank, with the lock held.
	take(world int, h windowHeader, payload []byte)
	// view is memory of the own part, from an element on.
	view(at, nBytes int) []byte
	// lost forgets a rank's locks.
	lost(world int)
}

// windowTable is what an engine keeps of windows. Guarded by its lock.
type windowTable struct {
	byID      map[uint32]anyWindow
	questions map[uint64]*question
	next      uint64
	missed    map[goneWindow]bool // those that have been logged
}

// goneWindow names a window that this rank does not have (any more), and a rank that used it all the same.
type goneWindow struct {
	id    uint32
	world int
}

// question is a message that waits for its answer.
type question struct {
	prober
	world  int
	dst    []byte
	left   int // bytes of the answer that are to come; 1 if the answer has none
	failed bool
	gone   error
	until  *Comm // its revocation ends the wait, if the answer may depend on a third rank; else nil
}

func (q *question) met() bool {
	if q.left > 0 && q.gone == nil && !q.failed {
		if q.world != q.e.rank {
			q.gone = q.e.peer(q.world).lost
		}
		switch {
		case q.gone != nil:
		case q.e.closed:
			q.gone = ErrClosed
		case q.until != nil && q.until.revoked.Load():
			q.gone = ErrRevoked
		}
	}
	return q.left <= 0 || q.gone != nil || q.failed
}

func (t *windowTable) lost(world int) {
	for _, w := range t.byID {
		w.lost(world)
	}
}

// addWindow lets messages find a window; false if the world is closed.
func (e *engine) addWindow(id uint32, w anyWindow) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	if e.windows.byID == nil {
		e.windows.byID = make(map[uint32]anyWindow)
		e.windows.questions = make(map[uint64]*question)
		e.windows.missed = make(map[goneWindow]bool)
		e.handlers[kindWindow] = e.windowMessage
	}
	maps.DeleteFunc(e.windows.missed, func(gone goneWindow, _ bool) bool { return gone.id == id })
	e.windows.byID[id] = w
	return true
}

// newQuestion registers a question to a world rank. The lock is held.
func (e *engine) newQuestion(world int, dst []byte) (token uint64, q *question) {
	e.windows.next++
	q = &question{prober: prober{e: e}, world: world, dst: dst, left: max(1, len(dst))}
	e.windows.questions[e.windows.next] = q
	return e.windows.next, q
}

// answered takes an answer, or the part of one that a message carries.
func (e *engine) answered(world int, h windowHeader, payload []byte) {
	q := e.windows.questions[h.token]
	if q == nil || q.world != world {
		return // given up
	}
	if h.code == windowFailed || h.at > len(q.dst)-len(payload) {
		q.failed = true
	} else {
		copy(q.dst[h.at:], payload)
		q.left -= max(1, len(payload))
	}
	if q.met() {
		e.sighted()
	}
}

// windowMessage is the handler of kindWindow.
func (e *engine) windowMessage(world int, h *transport.Header, payload []byte) {
	v := windowHeaderOf(h)
	if v.code == windowAnswer || v.code == windowFailed {
		e.answered(world, v, payload)
		return
	}
	if w := e.windows.byID[h.Context]; w != nil {
		w.take(world, v, payload)
		return
	}
	gone := goneWindow{h.Context, world}
	if !e.windows.missed[gone] {
		if len(e.windows.missed) >= e.mostKept { // better to log some twice than to remember without end
			clear(e.windows.missed)
		}
		e.windows.missed[gone] = true
		e.log.Warn("one-sided operations on a window that does not exist here any more", "window", h.Context, "rank", world)
	}
	e.answer(world, h.Context, windowHeader{code: windowFailed, token: v.token}, nil)
}

// answer answers a message of kindWindow.
func (e *engine) answer(world int, id uint32, h windowHeader, payload []byte) {
	h.nBytes = len(payload)
	e.reply(e.peer(world), parcel{step: stepAnswer, h: h.header(id), more: payload})
}

// reply sends an answer. If it cannot leave at once, its payload is copied. A peer that asks and asks
// and takes no answers is lost.
func (e *engine) reply(p *peer, x parcel) {
	if e.passes(p, &x) {
		return
	}
	if p.out.answers >= e.mostKept {
		e.tooMany(p.rank, "answers", p.out.answers)
		return
	}
	x.more = append([]byte(nil), x.more...)
	e.enqueue(p, x)
}

// got is the answer to a windowGet, of the memory as it is now.
func (t *windowTable) got(h *transport.Header) (transport.Header, []byte) {
	v := windowHeaderOf(h)
	w := t.byID[h.Context]
	if w == nil {
		return windowHeader{code: windowFailed, token: v.token}.header(h.Context), nil
	}
	return windowHeader{code: windowAnswer, token: v.token, nBytes: v.nBytes}.header(h.Context), w.view(v.at, v.nBytes)
}

// tell sends a message of kindWindow that has no answer.
func (e *engine) tell(world int, id uint32, h windowHeader) {
	e.control(e.peer(world), h.header(id))
}

// room is the condition that nothing waits to be sent to a peer.
type room struct {
	prober
	p *peer
}

func (r *room) met() bool { return r.p.out.empty() || r.p.lost != nil }

// post sends a message of kindWindow once there is room, with the lock held.
func (e *engine) post(ctx context.Context, p *peer, h transport.Header, payload []byte) error {
	for {
		if p.lost != nil {
			return p.lost
		}
		if p.out.empty() {
			e.hdr = h
			switch e.outcome(p, p.provider.Send(p.rank, &e.hdr, payload)) {
			case transport.Sent:
				return nil
			case transport.Gone:
				return e.gone(p)
			}
			// The message waits in the outbox, and the engine offers it again (flush).
			e.enqueue(p, parcel{step: stepControl, h: h, more: append([]byte(nil), payload...)})
			return nil
		}
		if err := e.await(ctx, &room{prober: prober{e: e}, p: p}); err != nil {
			return err
		}
	}
}

// pieceBytes is how many bytes one message to a peer carries, in whole elements of T.
func pieceBytes[T Elem](p *peer) int {
	size := SizeOf[T]()
	return max(size, min(p.caps.EagerBytes, 64<<10)/size*size)
}

// scatter sends elements to a target in pieces.
func (w *Window[T]) scatter(ctx context.Context, what string, target int, code windowCode, op Accumulation, at int, src []T) error {
	e := w.e
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peer(int(w.c.group[target]))
	step := pieceBytes[T](p) / SizeOf[T]()
	for len(src) > 0 {
		n := min(step, len(src))
		h := windowHeader{code: code, acc: op, at: at, nBytes: n * SizeOf[T]()}
		if err := e.post(ctx, p, h.header(w.id), Bytes(src[:n])); err != nil {
			return w.c.failBy(what, target, AnyTag, err)
		}
		w.posted[target].all.Add(1)
		src, at = src[n:], at+n
	}
	return nil
}

// gatherDepth is how many pieces of a Get are asked for at a time.
const gatherDepth = 4

// gather asks a target for elements in pieces, gatherDepth at a time, so that
// neither side holds more pieces than that.
func (w *Window[T]) gather(ctx context.Context, target, at int, dst []T) error {
	e := w.e
	e.mu.Lock()
	defer e.mu.Unlock()
	world := int(w.c.group[target])
	p := e.peer(world)
	step := pieceBytes[T](p) / SizeOf[T]()
	var tokens [gatherDepth]uint64
	defer func() {
		for _, t := range tokens {
			delete(e.windows.questions, t)
		}
	}()
	wait := func(slot int) error {
		q := e.windows.questions[tokens[slot]]
		if q == nil {
			return nil
		}
		err := e.answerTo(ctx, q)
		delete(e.windows.questions, tokens[slot])
		return err
	}
	var err error
	slot := 0
	for ; len(dst) > 0 && err == nil; slot = (slot + 1) % gatherDepth {
		if err = wait(slot); err != nil {
			break
		}
		n := min(step, len(dst))
		tokens[slot], _ = e.newQuestion(world, Bytes(dst[:n]))
		h := windowHeader{code: windowGet, token: tokens[slot], at: at, nBytes: n * SizeOf[T]()}
		err = e.post(ctx, p, h.header(w.id), nil)
		dst, at = dst[n:], at+n
	}
	for i := 0; i < gatherDepth && err == nil; i++ {
		err = wait((slot + i) % gatherDepth)
	}
	if err != nil {
		return w.c.failBy("get", target, AnyTag, err)
	}
	return nil
}

// answerTo waits for the answer to a question, with the lock held.
func (e *engine) answerTo(ctx context.Context, q *question) error {
	if err := e.await(ctx, q); err != nil {
		return err
	}
	if q.failed {
		return errWindowFreedThere
	}
	return q.gone
}

// ask sends a question to a target and waits for its answer in dst.
func (w *Window[T]) ask(ctx context.Context, what string, target int, h windowHeader, payload, dst []byte) error {
	e := w.e
	e.mu.Lock()
	defer e.mu.Unlock()
	world := int(w.c.group[target])
	token, q := e.newQuestion(world, dst)
	defer delete(e.windows.questions, token)
	h.token, h.nBytes = token, len(payload)
	err := e.post(ctx, e.peer(world), h.header(w.id), payload)
	if err == nil {
		err = e.answerTo(ctx, q)
	}
	if err != nil {
		return w.c.failBy(what, target, AnyTag, err)
	}
	return nil
}

// take handles a message of another member.
func (w *Window[T]) take(world int, h windowHeader, payload []byte) {
	size := SizeOf[T]()
	n := len(payload) / size
	switch h.code {
	case windowGet:
		n = h.nBytes / size
		h.nBytes = n * size
	case windowFetch, windowSwap:
		n = 1
	case windowFlush, windowLock, windowUnlock, windowCancel:
		n, h.at = 0, 0
	}
	rank := w.c.RankOf(world)
	if rank < 0 || n > len(w.part)-h.at || h.acc >= accumulations || w.combine[h.acc] == nil ||
		h.code == windowFetch && len(payload) != size || h.code == windowSwap && len(payload) != 2*size {
		w.e.log.Warn("one-sided operation outside the window", "window", w.id, "rank", world, "at", h.at, "elements", n)
		w.e.answer(world, w.id, windowHeader{code: windowFailed, token: h.token}, nil)
		return
	}
	answer := windowHeader{code: windowAnswer, token: h.token}
	switch h.code {
	case windowPut:
		copy(Bytes(w.part[h.at:]), payload)
	case windowAccumulate:
		accumulate(w.part[h.at:], elements[T](payload), w.combine[h.acc])
	case windowGet:
		w.e.reply(w.e.peer(world), parcel{step: stepGet, h: h.header(w.id)})
	case windowFetch:
		f, b := w.combine[h.acc], elements[T](payload)[0]
		was := [1]T{change(&w.part[h.at], func(a T) T { return f(a, b) })}
		w.e.answer(world, w.id, answer, Bytes(was[:]))
	case windowSwap:
		args := elements[T](payload)
		was := [1]T{change(&w.part[h.at], swap(args[0], args[1]))}
		w.e.answer(world, w.id, answer, Bytes(was[:]))
	case windowFlush:
		w.e.answer(world, w.id, answer, nil)
	case windowLock:
		if hoards(w.e, world, "wishes for a lock", len(w.locks.queue), slices.Values(w.locks.queue), func(l lockWish) bool { return l.rank == rank }) {
			return
		}
		w.locks.ask(w, lockWish{rank: rank, mode: LockMode(h.acc), token: h.token})
	case windowUnlock:
		w.locks.release(w, rank)
	case windowCancel:
		w.locks.cancel(w, rank, h.token)
	}
}

func (w *Window[T]) view(at, nBytes int) []byte { return Bytes(w.part[at : at+nBytes/SizeOf[T]()]) }

// elements views a payload as elements, or copies it where it is not aligned for them.
func elements[T Elem](payload []byte) []T {
	if aligned[T](payload) {
		return View[T](payload)
	}
	dst := make([]T, len(payload)/SizeOf[T]())
	copy(Bytes(dst), payload)
	return dst
}

func aligned[T Elem](b []byte) bool {
	var zero T
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%unsafe.Alignof(zero) == 0
}
