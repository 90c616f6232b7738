package native

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// Options says how to start a library.
type Options struct {
	// Ranks is the number of ranks the launcher started; 0: unknown, and not checked.
	Ranks int
	// Registrations says when the library is told that a finished transfer's buffer may
	// be unmapped.
	Registrations Registrations
	// Fence, if set, is called when MPI_Init_thread has returned, and returns when that has returned on all ranks:
	// no message is sent before. It is for libraries that let ranks out of MPI_Init_thread while others are still
	// inside.
	Fence func(ctx context.Context) error
}

// Registrations is a rule about the registration caches of RDMA networks, which do not
// see the Go runtime give memory back and would write to where a buffer used to be.
type Registrations uint8

const (
	// ForgetOnRDMA drops the cached registration of each larger buffer after its
	// transfer where UCX drives an RDMA device, except for buffers announced by
	// [World.Keep].
	ForgetOnRDMA Registrations = iota
	// ForgetAlways does so wherever UCX is loaded.
	ForgetAlways
	// ForgetNever trusts that all large buffers are memory which is never given back.
	ForgetNever
)

// Caps says what the library as a device can do. What MPI itself cannot do is false for every library.
type Caps struct {
	MaxTag         int
	CancelsSends   bool // a send that has not been matched can be taken back
	NamesLost      bool // a dead peer is an error of the operations with it
	SleepsInKernel bool // a waiting rank wakes by an event, not by looking
}

// World is an initialised library. It is this process's only one: MPI cannot be
// initialised again after [World.Close].
type World struct {
	lib     *Library
	abi     *abi
	fn      *functions
	log     *slog.Logger
	library string
	caps    Caps
	comm    *Comm // MPI_COMM_WORLD
	system  *Comm // a twin for this package's own messages
	layout  statusLayout
	// maxCount is the largest count of the classic calls; smaller in tests.
	maxCount int
	main     chan func()
	creating sync.Mutex // held during CreateGroup's blocking call

	// Calls of CreateGroup under way, which Close waits for, and what ends their contexts.
	making sync.WaitGroup
	open   context.Context
	shut   context.CancelCauseFunc

	// mu is held around each call of the library, and for what follows.
	mu       sync.Mutex
	wanted   atomic.Int32 // goroutines other than the polling one that wait for mu
	calls    uint64       // times that the program has taken mu
	seen     uint64       // calls at the last Called
	closing  bool         // all ranks have called Close
	closed   bool
	chain    clib.Chain // the call under way
	held     *Request   // its request
	sends    brief
	receives brief
	active   *Request
	leading  bool
	spins    int // polls of the leader before it gives its core away
	parked   []*parking
	unused   []*parking
	pool     []*Request
	nudge    Request // results of Progress, which nobody reads

	// Where long messages are announced; see announce.go.
	announces        bool
	long             *Comm // on which announced messages follow
	announcements    int
	notices          []*notification // not in use
	notifying        []*notification // on their way
	processes        []int           // by rank: whose memory this one reads; see pull.go
	readers          []bool          // by rank: who reads this one's
	acknowledgements *Comm           // on which receivers acknowledge what they have read

	unmapFn uintptr // UCX's entry for unmapped memory, 0 without UCX
	forgets bool    // drop registrations of buffers outside kept memory after each transfer
	kept    []span
}

// Init initialises the library with MPI_THREAD_SERIALIZED, on a thread that is kept for
// MPI_Finalize, and compares the number of ranks it sees with the launcher's: a
// difference is [ErrLauncher], since an MPI library under another's launcher makes each
// rank a world of one. Signal actions that initialising changed are put back. If ctx
// ends first the error is its cause, and the process should exit.
func (l *Library) Init(ctx context.Context, o Options) (*World, error) {
	w := &World{lib: l, abi: l.abi, fn: &l.fn, log: l.log, library: l.String(), maxCount: maxCount, spins: spinsAlone, main: make(chan func())}
	w.open, w.shut = context.WithCancelCause(context.Background())
	w.chain.Poll.Fn = w.fn.test
	w.sends.aim(w, w.fn.isend)
	w.receives.aim(w, w.fn.irecv)
	go func() {
		runtime.LockOSThread()
		for f := range w.main {
			f()
		}
	}()
	done := make(chan error, 1)
	w.main <- func() { done <- w.start(o) }
	select {
	case err := <-done:
		if err == nil && o.Fence != nil {
			err = o.Fence(ctx)
		}
		if err == nil {
			w.system, err = w.comm.Dup(ctx, "system")
		}
		if err == nil && w.announces {
			w.long, err = w.comm.Dup(ctx, "long messages")
			if err == nil {
				w.acknowledgements, err = w.comm.Dup(ctx, "acknowledgements")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("native: %s: %w", l, err)
		}
		return w, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("native: %s: MPI_Init_thread has not returned: %w", l, context.Cause(ctx))
	}
}

func (w *World) start(o Options) error {
	out := new([2]int32)
	clib.Call(w.fn.initialized, uintptr(unsafe.Pointer(&out[0])))
	if out[0] != 0 {
		return fmt.Errorf("%w: MPI_Init has been called in this process", ErrTwoLibraries)
	}
	if err := w.precheck(o); err != nil {
		return err
	}
	start := time.Now()
	rc := int(int32(clib.Call(w.fn.initThread, 0, 0, uintptr(w.abi.threadSerial), uintptr(unsafe.Pointer(&out[0])))))
	changed, err := w.lib.signals.Restore()
	if err != nil {
		return err
	}
	if rc != 0 {
		_, text := w.explain(rc)
		return fmt.Errorf("%w: MPI_Init_thread: %s", ErrFailed, text)
	}
	w.log.Debug("MPI initialised", "library", w.library, "path", w.lib.Path, "thread_level", out[0],
		"took", time.Since(start), "signals_restored", len(changed))
	if int(out[0]) < w.abi.threadSerial {
		clib.Call(w.fn.finalize)
		return fmt.Errorf("%w: it offers thread level %d, needed is MPI_THREAD_SERIALIZED (%d)", ErrThreads, out[0], w.abi.threadSerial)
	}
	if w.comm, err = w.newComm(w.abi.commWorld, "world"); err == nil {
		err = w.compare(o)
	}
	if err != nil {
		clib.Call(w.fn.finalize)
		return err
	}
	w.layout = w.probeStatus()
	w.announces = w.announcing()
	w.caps = Caps{MaxTag: w.tagBound()}
	w.openRegistrations(o.Registrations)
	return nil
}

// precheck refuses what would end the process inside MPI_Init.
func (w *World) precheck(o Options) error {
	l := w.lib.Launcher
	if w.lib.Family == OpenMPI && l.Kind == BySlurm && o.Ranks > 1 {
		return fmt.Errorf("%w: %d ranks started by srun without a PMI (%s), which Open MPI cannot join; %s",
			ErrLauncher, o.Ranks, l.Why, w.lib.Family.advice())
	}
	return nil
}

// compare holds the library's idea of the world against the launcher's.
func (w *World) compare(o Options) error {
	if o.Ranks != 0 && o.Ranks != w.comm.size {
		return fmt.Errorf("%w: %s started %d ranks, %s at %s sees %d; %s",
			ErrLauncher, w.lib.Launcher, o.Ranks, w.library, w.lib.Path, w.comm.size, w.lib.Family.advice())
	}
	return nil
}

// tagBound is the largest tag the library takes.
func (w *World) tagBound() int {
	const least = 32767 // what the standard promises
	flag, value := new(int32), new(uintptr)
	w.lock()
	defer w.mu.Unlock()
	rc := clib.Call(w.fn.commGetAttr, uintptr(w.comm.handle), uintptr(w.abi.keyvalTagUB),
		uintptr(unsafe.Pointer(value)), uintptr(unsafe.Pointer(flag)))
	if int32(rc) != 0 || *flag == 0 || *value == 0 {
		return least
	}
	// A predefined attribute is the address of an int.
	return int(*(*int32)(clib.Pointer(*value)))
}

// Comm is the communicator of all ranks.
func (w *World) Comm() *Comm { return w.comm }

// Caps says what the library can do.
func (w *World) Caps() Caps { return w.caps }

// Library is what was opened.
func (w *World) Library() *Library { return w.lib }

// lock takes mu ahead of the goroutine that polls.
func (w *World) lock() {
	if !w.mu.TryLock() {
		w.lockLater()
	}
	w.calls++
}

func (w *World) lockLater() {
	w.wanted.Add(1)
	w.mu.Lock()
	w.wanted.Add(-1)
}

// Crowd says that there are more ranks than cores on this host: a waiting rank gives its core away sooner.
func (w *World) Crowd() {
	w.lock()
	w.spins = spinsCrowded
	w.mu.Unlock()
}

// hold keeps r reachable, and on the heap, while only the chain has its address.
func (w *World) hold(r *Request) { w.held = r }

func (w *World) activate(r *Request) {
	r.state = active
	r.prev, r.next = nil, w.active
	if w.active != nil {
		w.active.prev = r
	}
	w.active = r
}

func (w *World) deactivate(r *Request) {
	r.state = complete
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		w.active = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
}

// load reads a handle that C has written.
func (w *World) load(p *uintptr) handle {
	if w.abi.word == 4 {
		return handle(int(*(*int32)(unsafe.Pointer(p))))
	}
	return handle(*p)
}

func (w *World) store(p *uintptr, h handle) { *p = uintptr(h) }

// explain returns the class of an error code and the library's text for it.
func (w *World) explain(code int) (class int, text string) {
	buf, n := make([]byte, 1024), new([2]int32)
	clib.Call(w.fn.errorClass, uintptr(code), uintptr(unsafe.Pointer(&n[0])))
	clib.Call(w.fn.errorString, uintptr(code), uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n[1])))
	return int(n[0]), strings.TrimSpace(strings.ReplaceAll(clib.Text(buf), "\n", "; "))
}

// quiesce ends what is in flight: receives are cancelled, the rest is waited for.
func (w *World) quiesce(ctx context.Context) error {
	for {
		w.lock()
		r := w.active
		w.follow()
		sent := len(w.notifying) == 0
		w.mu.Unlock()
		if r == nil && sent {
			return nil
		}
		if r == nil {
			if ctx.Err() != nil {
				return fmt.Errorf("native: short messages to other ranks are still in flight: %w", context.Cause(ctx))
			}
			pause(0)
			continue
		}
		_ = r.Cancel() // a send or collective cannot be: it is waited for
		if _, err := w.Wait(ctx, r); err != nil && r.InFlight() {
			return fmt.Errorf("native: %s to rank %d tag %d of %s is still in flight: %w", r.op, r.peer, r.tag, r.comm.name, err)
		}
	}
}

// meet waits until all ranks are here.
func (w *World) meet(ctx context.Context) error {
	r := new(Request)
	if err := w.system.Ibarrier(r); err != nil {
		return err
	}
	return w.finishCollective(ctx, r)
}

// Close ends MPI in this process. All ranks call it; it waits for all of them, polling. From then on calls return
// [ErrClosed]. Receives, probes and calls of [World.CreateGroup] still in flight end with [ErrClosed], also where
// goroutines wait for them; sends and collectives, which MPI cannot take back, are waited for. Then Close calls
// MPI_Finalize. After ctx ends it returns although the library has not: the process should exit then, by
// [World.Abort] if the others must not go on.
func (w *World) Close(ctx context.Context) error {
	w.lock()
	closing, closed := w.closing, w.closed
	w.mu.Unlock()
	if closed {
		return nil
	}
	if !closing {
		if err := w.meet(ctx); err != nil {
			return err
		}
		w.lock()
		w.closing = true
		w.mu.Unlock()
		w.shut(ErrClosed)
	}
	if err := w.awaitGroups(ctx); err != nil { // before their receives may be cancelled
		return err
	}
	if err := w.quiesce(ctx); err != nil {
		return err
	}
	if err := w.meet(ctx); err != nil { // a rank in MPI_Finalize need not help the others
		return err
	}
	done := make(chan int, 1)
	w.main <- func() {
		w.lock()
		defer w.mu.Unlock()
		if w.closed {
			done <- 0
			return
		}
		w.closed = true
		done <- int(int32(clib.Call(w.fn.finalize)))
	}
	select {
	case rc := <-done:
		if rc != 0 {
			return fmt.Errorf("native: %s: %w: MPI_Finalize returned %d", w.library, ErrFailed, rc)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("native: %s: MPI_Finalize has not returned: %w", w.library, context.Cause(ctx))
	}
}

// forwarding is how long Abort leaves the launcher to pass on what this rank has
// written: Hydra drops it when the job is aborted at once.
const forwarding = 50 * time.Millisecond

// Abort ends all ranks of the job with the given exit code and does not return.
// Deferred functions do not run.
func (w *World) Abort(code int) {
	nap(forwarding)
	// The lock may be held by a call that never returns.
	for deadline := time.Now().Add(100 * time.Millisecond); !w.mu.TryLock() && time.Now().Before(deadline); {
		pause(0)
	}
	if !w.closed {
		clib.Call(w.fn.abort, uintptr(w.abi.commWorld), uintptr(code))
	}
	os.Exit(code)
}
