package collective

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/biased"
	"github.com/fisterra-hpc/fisterra/internal/kernel"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// state is what this package keeps about a communicator: its plans, the
// number of the next collective, what is under way.
type state struct {
	self       weak.Pointer[mpi.Comm] // the communicator, which this must not keep alive
	name       string
	rank, size int
	// sizesOnly: payloads are not carried, and neither are signatures.
	sizesOnly bool
	takesBack bool // Cancel ends sends, too

	mu      biased.Mutex
	given   Config // by Configure
	config  Config // the same with a model
	seq     uint32
	trail   uint64 // of the calls so far
	entries map[key]*entry
	last    [plan.Exscan + 1]*entry // of the last call of each kind, found without hashing
	nodes   *plan.Nodes
	share   float64 // ranks per core; 0: not asked yet
	fixed   []*fixedPoint

	arena        atomic.Pointer[arena] // shared memory of the ranks, where there is one
	arenaSettled atomic.Bool           // whether there is
	making       chan struct{}         // closed when it is settled; nil: nobody makes it

	pastSent atomic.Bool // another rank looks for the call in which the ranks differ

	broken atomic.Pointer[Error]   // why no collective may start any more
	off    context.Context         // ends when they are called off
	endOff context.CancelCauseFunc // of off
	watch  watch
}

// key names a plan: everything that a call's schedule depends on.
type key struct {
	kind    plan.Kind
	inPlace bool
	// late: the number was taken some time before the start, as of a part of a call.
	// Other goroutines' calls may have started in between, so that the MPI library, which needs one order on all
	// ranks, must not get it.
	late bool
	// here: the arena is asked first, as it is for blocking calls of which all ranks know all counts.
	here  bool
	root  int
	op    Op
	count int
	typ   elemType
	hash  uint64 // of counts; 0 without
}

// same is ==, which the compiler makes a call of. Types of one kind are of one size.
func (k *key) same(o *key) bool {
	return k.count == o.count && k.root == o.root && k.typ.kind == o.typ.kind && k.op == o.op && k.hash == o.hash &&
		k.kind == o.kind && k.inPlace == o.inPlace && k.late == o.late && k.here == o.here
}

// entry is a plan with what is needed to run it.
type entry struct {
	key
	rank, size int      // of the communicator
	counts     [3][]int // Counts, SendCounts, RecvCounts
	plan       *plan.Plan
	way        way // but for byMessages the plan is empty
	// farMapped: done through pieces while the ranks are near, or not all ranks' buffers can be mapped; else directly.
	// farKernel: done through pieces while the ranks are near; else directly.
	farMapped, farKernel bool
	// readsMapped: done through memory, or by the kernel, while not all ranks' buffers can be mapped; else read where they
	// are mapped.
	readsMapped bool
	atOnce      bool // done through slots, whatever else
	length      length
	starts      []int // of the blocks of Counts, in bytes; nil: they are alike
	combine     kernel.Func
	signature   signature // but for its trail
	digest      uint64    // of it
	waitsForAll bool      // in the arena: CheckAll has all ranks compare their calls first
	flow        flow      // in the arena
	leaving     *order    // in the arena: of a barrier after it, once it has been held
	idle        []*execution
}

const (
	// maxEntries and plansBytes bound the plans kept for one communicator. Of an alltoallv among 4,096 ranks one needs
	// some 0.6 MB, and is of no use again where the counts change from call to call.
	maxEntries = 256
	plansBytes = 16 << 20
	// ctrlTag is for the library's own news about collectives. The tags after it are taken by the collectives in turn.
	ctrlTag = mpi.ReservedTags
	// firstTag is the first tag of the collectives.
	firstTag = ctrlTag + 1
)

// tagsOf is how many tags the collectives on c take turns in: as many as the MPI library
// under it has, and so many that no two under way share one.
func tagsOf(c *mpi.Comm) uint32 {
	const enough = 1 << 20
	return uint32(min(enough, c.MaxTag()-firstTag+1))
}

// stateKey names the attribute of a communicator that is its state.
var stateKey mpi.Keyval

func stateOf(c *mpi.Comm) *state {
	if s, ok := c.Cached(&stateKey).(*state); ok {
		return s
	}
	return c.Attribute(&stateKey, func() any { return newState(c, Config{}) }).(*state)
}

func newState(c *mpi.Comm, f Config) *state {
	s := &state{
		self: weak.Make(c), name: c.Name(), rank: c.Rank(), size: c.Size(),
		sizesOnly: c.Caps().SizesOnly, takesBack: c.Caps().CancelsSends,
		entries: make(map[key]*entry),
	}
	if s.watched() {
		s.watch.calls = make([]past, history)
	}
	s.mu.Favour()
	s.off, s.endOff = context.WithCancelCause(context.Background())
	s.configure(c, f)
	return s
}

// call is one rank's request, before a plan is found for it.
type call struct {
	key
	counts     [3][]int
	send, recv []byte
	err        error // a mistake in the arguments

	seq   uint32    // its number; 0: it gets one when it starts
	trail uint16    // of the calls before that
	phase phase     // if this is a part of what the program called: which one
	asked signature // if this is a part: the signature of what the program called
	made  bool      // this call has made the arena, of which the other goroutines do not know yet
}

// part is a call that is a part of q and has its number.
func (q *call) part(p phase) call {
	asked := q.asked
	if q.phase == whole {
		asked = q.key.sign(0)
	}
	return call{key: key{late: true}, phase: p, asked: asked, seq: q.seq, trail: q.trail}
}

// form is how a collective was called.
type form uint8

const (
	blocking form = iota
	nonblocking
)

// acquire numbers the call and gives it an execution of its plan, and the turn.
func (s *state) acquire(c *mpi.Comm, q *call, f form) (*execution, error) {
	if b := s.broken.Load(); b != nil {
		return nil, s.refuse(q, b)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(c, q)
	if err != nil {
		return nil, s.rejected(q, err)
	}
	if e.way.inArena() {
		panic(fmt.Sprintf("collective: %v is to be done outside of the arena by its way %d", e.signature, e.way))
	}
	s.number(q, e.digest)
	x, err := s.take(c, q, e, f)
	if err == nil && e.way == byLibrary {
		x.native = x.callLibrary(q.send, q.recv)
	}
	return x, err
}

// take readies an execution of an entry for a call that has a number, and gives it and the turn. The state is locked.
func (s *state) take(c *mpi.Comm, q *call, e *entry, f form) (*execution, error) {
	var x *execution
	if n := len(e.idle); n > 0 {
		x = e.idle[n-1]
		e.idle = e.idle[:n-1]
	} else {
		var err error
		if x, err = newExecution(s, e); err != nil {
			return nil, s.fault(q.called(), q.seq, err)
		}
	}
	var first *agreement
	if s.comparesCounts(e) {
		first = s.agreeOnCounts(c, q, e)
	}
	x.turn.Lock()
	x.nonblocking = f == nonblocking
	x.begin(c, q, first)
	s.watch.add(x)
	return x, nil
}

// release takes an execution and its turn back.
func (s *state) release(x *execution) {
	s.mu.Lock()
	s.watch.remove(x)
	x.live.Store(0)
	x.comm, x.shadow = nil, nil
	x.mem[plan.Send], x.mem[plan.Recv] = nil, nil
	if !x.spoilt {
		x.entry.idle = append(x.entry.idle, x)
		if len(x.entry.idle)*x.heldBytes() >= manyBytes { // as many as were under way at a time
			s.boundIdle(x.entry)
		}
	}
	x.turn.Unlock()
	s.mu.Unlock()
}

const (
	// idleBytes bounds what the executions of a communicator hold for calls to come, but for those of the
	// last shape. Programs with vectors of ever other lengths would run out of memory.
	idleBytes = 64 << 20
	manyBytes = 256 << 10 // entries whose executions hold less are bounded by maxEntries
)

// boundIdle lets go of idle executions, of all entries but one, if together they hold too much. The state
// is locked.
func (s *state) boundIdle(last *entry) {
	sum := 0
	for _, e := range s.entries {
		for _, x := range e.idle {
			sum += x.heldBytes()
		}
	}
	if sum <= idleBytes {
		return
	}
	for _, e := range s.entries {
		if e != last {
			e.idle = nil
		}
	}
}

func (e *entry) sameCounts(q *call) bool {
	for i := range e.counts {
		if !slices.Equal(e.counts[i], q.counts[i]) {
			return false
		}
	}
	return true
}

// find is entry, and quick for a call like the last one. An error is a mistake in the arguments. The
// state is locked.
func (s *state) find(c *mpi.Comm, q *call) (*entry, error) {
	if e := s.last[q.kind]; e != nil && e.key.same(&q.key) && (q.hash == 0 || e.sameCounts(q)) {
		return e, nil
	}
	e, err := s.entry(c, q)
	if err == nil {
		s.last[q.kind] = e
	}
	return e, err
}

// entry finds or makes the plan for a call. The state is locked.
func (s *state) entry(c *mpi.Comm, q *call) (*entry, error) {
	if e := s.entries[q.key]; e != nil && e.sameCounts(q) {
		return e, nil
	}
	e := &entry{key: q.key, rank: s.rank, size: s.size}
	for i, counts := range q.counts {
		e.counts[i] = slices.Clone(counts)
	}
	if q.kind.Reduces() {
		var err error
		if e.combine, err = q.op.combiner(q.typ); err != nil {
			return nil, err
		}
	}
	p := s.problem(c, e)
	if fitsSlot(p) {
		e.length = short
	}
	compared := s.config.comparesFirst(p)
	here, open := "", false
	if e.here {
		here, _, open = s.config.arenaWay(p, s.canRead())
	}
	switch {
	case !s.config.CheckAll && libraryHas(c, e) && s.config.whyLibrary(p) != "": // whose messages carry no signature
		e.way, e.signature, here = byLibrary, e.sign(noOp), LibraryPlan
	case here == DirectPlan:
		e.way, e.signature = byDirect, e.sign(directCode)
		e.readsMapped = s.config.readsMapped(here, p, s.canRead())
	case here == MemoryPlan:
		e.way, e.signature = byPieces, e.sign(memoryCode)
		e.readsMapped = s.config.readsMapped(here, p, s.canRead())
		if e.length == short {
			e.way = bySlots
		} else {
			e.farMapped = open && s.canRead() && reads(p.Kind) && !gathers(p.Kind)
			e.farKernel = e.farMapped && readsFar(p)
		}
	default:
		planner, index := s.choose(p)
		e.plan = planner.Build(p)
		if compared {
			e.plan = e.plan.After(s.barrier(p))
		}
		e.signature = e.sign(index)
	}
	if e.way != byMessages {
		e.plan = &plan.Plan{Name: here}
		e.atOnce = e.way == bySlots && !e.readsMapped
		e.starts, e.waitsForAll = blockOffsets(q.counts[0], q.typ.size), s.config.CheckAll
		e.findFlow()
	}
	e.digest = e.signature.digest()
	s.keep(e)
	return e, nil
}

// check is the error that entry would find in a call for which there is no entry yet.
func (q *call) check() error {
	if !q.kind.Reduces() {
		return nil
	}
	_, err := q.op.combiner(q.typ)
	return err
}

// barrier is the plan of a barrier of the ranks that have a problem. The state is locked.
func (s *state) barrier(of *plan.Problem) *plan.Plan {
	p := &plan.Problem{Kind: plan.Barrier, Rank: of.Rank, Size: of.Size, Nodes: of.Nodes, RanksPerCore: of.RanksPerCore}
	planner, _ := s.choose(p)
	return planner.Build(p)
}

// keep keeps an entry for calls to come, in place of others where they are too many. The state is locked.
func (s *state) keep(e *entry) {
	delete(s.entries, e.key)
	sum := e.bytes()
	for _, o := range s.entries {
		sum += o.bytes()
	}
	for k, o := range s.entries {
		if len(s.entries) < maxEntries && sum <= plansBytes {
			break
		}
		delete(s.entries, k) // whichever: a program with so many shapes re-uses few
		o.idle = nil         // also where it was the last of its kind, and a call like it still finds it
		sum -= o.bytes()
	}
	s.entries[e.key] = e
}

// bytes is the memory that an entry's plan and counts need.
func (e *entry) bytes() int {
	n := cap(e.plan.Steps)*int(unsafe.Sizeof(plan.Step{})) + cap(e.plan.Rounds)*int(unsafe.Sizeof(int32(0)))
	for _, counts := range e.counts {
		n += cap(counts) * int(unsafe.Sizeof(int(0)))
	}
	return n
}

// number gives a call whose signature has the digest its place among all calls on the communicator, from 1, if it has none
// yet. The state is locked.
func (s *state) number(q *call, digest uint64) {
	if q.seq != 0 {
		return
	}
	if s.seq++; s.seq == math.MaxInt32 {
		s.seq = 1
	}
	q.seq, q.trail = s.seq, uint16(s.trail>>trailShift)
	s.trail = (s.trail ^ digest) * trailFactor
}

// reject is the error of a call whose arguments make no sense. It counts as
// a collective: ranks that made the same mistake stay in step, and others learn of it when they ask.
func (s *state) reject(q *call, err error) *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rejected(q, err)
}

// rejected is reject while the state is locked.
func (s *state) rejected(q *call, err error) *Error {
	s.number(q, q.sign(badArguments).digest())
	called := q.sign(badArguments)
	s.watch.heard(q.seq, &called)
	s.watch.start(s) // to answer them, also after the first call here
	return s.fault(q.called(), q.seq, fmt.Errorf("%w: %w", ErrArgument, err))
}

// problem states an entry as planners want it. The state is locked.
func (s *state) problem(c *mpi.Comm, e *entry) *plan.Problem {
	return &plan.Problem{
		Kind: e.kind, Rank: s.rank, Size: s.size, Root: e.root,
		Count: e.count, Counts: e.counts[0], SendCounts: e.counts[1], RecvCounts: e.counts[2],
		ElemBytes: e.typ.size, InPlace: e.inPlace, Ordered: e.op.ordered(), Nodes: s.hosts(c),
		NetPartBytes: s.config.Model.NetPartBytes, RanksPerCore: s.ranksPerCore(c),
	}
}

// hosts groups the ranks by host, once. Ranks that talk over a network although they
// share a host are as far from each other as any. The state is locked.
func (s *state) hosts(c *mpi.Comm) *plan.Nodes {
	if s.nodes == nil {
		s.nodes = plan.NewNodes(s.size, func(rank int) string {
			if c.Networked(rank) {
				return fmt.Sprintf("rank %d", rank)
			}
			return c.Host(rank)
		})
	}
	return s.nodes
}

// ranksPerCore asks the communicator once. The state is locked.
func (s *state) ranksPerCore(c *mpi.Comm) float64 {
	if s.share == 0 {
		s.share = c.RanksPerCore()
	}
	return s.share
}

// fault makes the caller's error.
func (s *state) fault(k plan.Kind, seq uint32, err error) *Error {
	return &Error{Op: k.String(), Comm: s.name, Seq: seq, Rank: s.rank, Err: err}
}
