package mpi

import (
	"context"
	"log/slog"

	"github.com/fisterra-hpc/fisterra/internal/biased"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// engine is the device over Fisterra's own providers: it matches messages
// (match.go), runs the eager and rendezvous protocol (protocol.go), and makes
// progress in whoever waits (progress.go). Everything is guarded by mu.
type engine struct {
	mu biased.Mutex // of the world; a leader that polls steps aside where others want it

	rank, size int
	log        *slog.Logger
	homes      homes // where ranks should run

	match  matcher
	ops    opTable
	own    *op // of the blocking receive that needs no queue
	direct *op // own, while it waits for its message; older than all posted receives
	pool   bufferPool

	providers []transport.Provider
	serving   []bool // by provider: it has a peer
	members   []Member
	routes    []*route         // by world rank, found on first use
	peers     []*peer          // by world rank, made on first use
	backlog   []*peer          // peers with a non-empty outbox
	unread    []*op            // sends whose exposed memory could not be withdrawn yet
	hdr       transport.Header // of the message that is being sent, here since a local one would be allocated
	eager     transport.Header // likewise, of one that sendNow sends: its kind is set once, Token and Aux are zero
	selfHeld  int              // bytes of copied messages of this rank to itself, as in peer.held
	copying   int              // long messages of this rank to itself that are being copied, with mu released

	comms   map[uint32]*Comm // by context id, user and shadow
	context uint32           // next free context id
	// Even contexts revoked before they were attached here, and who said so first.
	revokedEarly  map[uint32]int
	ended         freedComms
	shrinks       map[shrinkID]*shrinkState
	early         map[earlyAsk]struct{} // shrink.go
	mostKept      int                   // hoard.go
	mostAnnounced int                   // likewise
	handlers      [256]func(peer int, h *transport.Header, payload []byte)
	windows       windowTable

	losses   []loss                         // in the order in which they became known
	reported []report                       // to be believed by whoever leads
	onLoss   func(rank int, err *lostError) // tells the bootstrap tree; must not block
	stays    func(rank int) bool            // a rank has not said goodbye; nil: its end may be known sooner than its goodbye
	closing  bool                           // own goodbye said: a closing peer is not a loss
	closed   bool                           // no operation may begin any more

	progress
}

func newEngine(rank, size int, log *slog.Logger) *engine {
	e := &engine{
		rank: rank, size: size, log: log,
		peers:         make([]*peer, size),
		routes:        make([]*route, size),
		comms:         make(map[uint32]*Comm),
		revokedEarly:  make(map[uint32]int),
		shrinks:       make(map[shrinkID]*shrinkState),
		early:         make(map[earlyAsk]struct{}),
		mostKept:      mostKept,
		mostAnnounced: mostAnnounced,
		eager:         transport.Header{Kind: kindEager},
	}
	e.mu.Favour()
	e.ops.dev = e
	e.own = e.ops.get()
	return e
}

// use sets the providers, before any peer is made.
func (e *engine) use(providers ...transport.Provider) {
	e.providers, e.serving = providers, make([]bool, len(providers))
}

func (e *engine) worldRank() int { return e.rank }

// finishWait waits for an op that nobody else knows, with the lock held, and
// gives it back.
func (e *engine) finishWait(ctx context.Context, o *op) (Status, error) {
	if err := e.awaitOp(ctx, o); err != nil {
		return e.giveUp(ctx, o)
	}
	return e.collect(o)
}

// awaitOp waits for an op, with the lock held, until ctx ends.
func (e *engine) awaitOp(ctx context.Context, o *op) error {
	if o.over() {
		return nil
	}
	e.glance(o)
	return e.await(ctx, o)
}

// collect takes the outcome of an op that is over and, if it has finished, gives the op back.
func (e *engine) collect(o *op) (Status, error) {
	if !o.finished() {
		return Status{}, e.leave(o, o.stranded)
	}
	s, err := o.status(), o.err
	if err != nil {
		err = e.describe(o, err)
	}
	if o == e.own {
		o.gen += 2 // as if given back: what waits in an outbox for this use is stale
		o.phase, o.buf, o.stranded, o.special = phaseFree, nil, nil, false
	} else {
		e.ops.put(o)
	}
	return s, err
}

func (e *engine) wait(ctx context.Context, r Request) (Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	if r.spent() {
		return Status{}, spent(e, "wait")
	}
	return e.finishWait(ctx, r.o)
}

func (e *engine) waitSome(ctx context.Context, rs []Request) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	for i, r := range rs {
		o := r.o
		switch {
		case o == nil || o == sent:
			continue
		case o.dev != e:
			return i, nil
		case r.spent():
			return i + 1, spent(e, "wait")
		}
		if o.finished() && o.err == nil {
			e.ops.put(o)
			continue
		}
		if e.awaitOp(ctx, o) != nil {
			n, err := giveUpAll(e, rs[i:], func(r Request) {
				if !r.spent() && !r.o.finished() {
					e.abort(r.o, context.Cause(ctx))
				}
			}, func(grace context.Context, r Request) error {
				if r.spent() {
					return spent(e, "wait")
				}
				_, err := e.takenBack(ctx, grace, r.o)
				return err
			})
			return i + n, err
		}
		if _, err := e.collect(o); err != nil {
			return i + 1, err
		}
	}
	return len(rs), nil
}

func (e *engine) test(r Request) (Status, bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	if r.spent() {
		return Status{}, true, spent(e, "test")
	}
	if !r.o.over() {
		e.pollOnce()
	}
	if !r.o.over() {
		return Status{}, false, nil
	}
	s, err := e.collect(r.o)
	return s, true, err
}

func (e *engine) cancel(r Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !r.spent() && !r.o.finished() {
		e.callBack(r.o)
	}
}

// callBack is what Cancel does to an unfinished op.
func (e *engine) callBack(o *op) {
	if o.phase == phaseMoving { // matched: too late, unless it is a receive whose sender gives the message up
		o.retract = true
		return
	}
	e.abort(o, ErrCancelled)
}

func (e *engine) doneChan(r Request) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.o.gen != r.gen || r.o.over() && !r.o.gaveUp {
		return closedChan
	}
	return e.watch(r.o)
}

// watch is the channel that finish closes. The lock is held.
func (e *engine) watch(o *op) chan struct{} {
	if o.done == nil {
		o.done, o.special = make(chan struct{}), true
		e.watched++
	}
	return o.done
}

// spent reports whether a Wait or Test has returned the outcome already. That may have been ErrInFlight: the op is then
// unfinished, and goes back to the table when it finishes. The lock is held.
func (r Request) spent() bool { return r.o.gen != r.gen || r.o.gaveUp }

func spent(d device, what string) error {
	return requestError(d, what, ErrRequest, "it has been waited for already")
}

func (e *engine) waitAny(ctx context.Context, rs []Request) (int, Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	any := e.anyOf(rs)
	defer e.keepAnyOf(any)
	if err := e.await(ctx, any); err != nil {
		return -1, Status{}, requestError(e, "waitany", err, "")
	}
	r := rs[any.at]
	if r.spent() {
		return any.at, Status{}, spent(e, "waitany")
	}
	s, err := e.collect(r.o)
	return any.at, s, err
}
