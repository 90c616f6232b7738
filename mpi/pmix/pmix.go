// Package pmix speaks to a PMIx server (srun --mpi=pmix, Open MPI's mpirun, prte)
// through the site's own libpmix, opened at run time without a C compiler. The wire
// protocol between the two is private to PMIx and changes with its version, so unlike
// PMI-1 and PMI-2 it cannot be spoken without that library.
//
// It offers what package slurm/pmi does: each rank puts what it has to say, all of them
// fence, then each gets what the others said. Its calls block inside the library, on a
// thread each; it is for start-up, not for a fast path. Every call ends with its
// context, or after Config.Timeout where that has no deadline.
package pmix

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// Lookup answers for one environment variable, as os.LookupEnv does.
type Lookup = func(name string) (value string, ok bool)

// Config has tuning that is seldom needed.
type Config struct {
	// Library is the file of libpmix; empty: what the loader finds by the usual names.
	Library string
	// Timeout bounds each call whose context has no deadline. 0 is 60 s.
	Timeout time.Duration
	// Log receives what was loaded; nil discards.
	Log *slog.Logger
}

// Client is the connection to the PMIx server of this node. Any goroutine may use it.
type Client struct {
	cfg       Config
	fn        functions
	path      string
	version   string
	namespace string
	rank      int
	size      int
	local     int // -1 if the server does not say
	localSize int
	closed    bool
	turn      chan struct{} // holds a token while no call is under way
}

// Present reports whether the environment names a PMIx server.
func Present(lookup Lookup) bool {
	namespace, _ := lookup("PMIX_NAMESPACE")
	rank, _ := lookup("PMIX_RANK")
	return namespace != "" && rank != ""
}

// Open loads libpmix and joins the server that started this process; without one the
// error is [ErrAbsent] and nothing is loaded. Signal actions that the library changed
// are put back. If the process also initialises Open MPI, which shares the library and
// its connection, it should do so before Finalize.
func Open(ctx context.Context, lookup Lookup, cfg Config) (*Client, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 60 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if !Present(lookup) {
		return nil, &Error{Op: "init", Rank: -1, Err: ErrAbsent, Detail: "PMIX_NAMESPACE and PMIX_RANK are not set"}
	}
	c := &Client{cfg: cfg, turn: make(chan struct{}, 1), local: -1}
	c.turn <- struct{}{}
	names := sonames
	if cfg.Library != "" {
		names = []string{cfg.Library}
	}
	signals := clib.Signals()
	if err := c.load(names); err != nil {
		return nil, &Error{Op: "init", Rank: -1, Err: err}
	}
	self := make([]byte, procBytes)
	status, err := c.call(ctx, "init", "", -1, func(time.Duration) uintptr {
		return clib.Call(c.fn.init, uintptr(unsafe.Pointer(&self[0])), 0, 0)
	})
	if _, restoreErr := signals.Restore(); err == nil && restoreErr != nil {
		err = &Error{Op: "init", Rank: -1, Err: restoreErr}
	}
	if err == nil {
		err = c.check("init", "", -1, status)
	}
	if err != nil {
		return nil, err
	}
	c.namespace = clib.Text(self[:maxNamespaceBytes+1])
	c.rank = int(binary.NativeEndian.Uint32(self[procRank:]))
	if err := c.job(ctx); err != nil {
		return nil, errors.Join(err, c.Finalize(ctx))
	}
	cfg.Log.Debug("joined PMIx", "library", c.path, "version", c.version, "namespace", c.namespace, "rank", c.rank, "size", c.size)
	return c, nil
}

// job asks for what every rank of the job knows.
func (c *Client) job(ctx context.Context) error {
	size, err := c.number(ctx, rankWildcard, attrJobSize)
	if err != nil {
		return err
	}
	if c.size = size; c.rank >= c.size {
		return &Error{Op: "init", Rank: c.rank, Err: ErrProtocol, Detail: fmt.Sprintf("the job has %d ranks", c.size)}
	}
	if c.local, err = c.number(ctx, uint32(c.rank), attrLocalRank); errors.Is(err, ErrNotFound) {
		c.local, err = -1, nil
	}
	if err != nil {
		return err
	}
	if c.localSize, err = c.number(ctx, rankWildcard, attrLocalSize); errors.Is(err, ErrNotFound) {
		c.localSize, err = 0, nil
	}
	return err
}

// Rank is this process's rank.
func (c *Client) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Client) Size() int { return c.size }

// LocalRank is this process's rank on its node, -1 if the server does not say.
func (c *Client) LocalRank() int { return c.local }

// LocalSize is the number of ranks on this node, 0 if the server does not say.
func (c *Client) LocalSize() int { return c.localSize }

// JobID names the job: the PMIx namespace, which no other job of the server has.
func (c *Client) JobID() string { return c.namespace }

// Put publishes a value under a key of this rank. Others see it after a Fence that all
// ranks have called. The value is copied.
func (c *Client) Put(ctx context.Context, key string, value []byte) error {
	if key == "" || len(key) > maxKeyBytes || strings.HasPrefix(key, "pmix") || strings.Contains(key, "\x00") {
		return &Error{Op: "put", Key: key, Rank: -1, Err: ErrKey,
			Detail: fmt.Sprintf("keys have 1 to %d bytes, do not begin with \"pmix\" and hold no NUL", maxKeyBytes)}
	}
	name := clib.Bytes(key)
	if len(value) == 0 {
		value = []byte{0} // an address; the size below stays 0
		return c.put(ctx, key, name, value, 0)
	}
	return c.put(ctx, key, name, value, len(value))
}

func (c *Client) put(ctx context.Context, key string, name, value []byte, n int) error {
	status, err := c.call(ctx, "put", key, -1, func(time.Duration) uintptr {
		v := make([]byte, valueBytes)
		binary.NativeEndian.PutUint16(v, typeByteObject)
		binary.NativeEndian.PutUint64(v[valueData:], uint64(uintptr(unsafe.Pointer(&value[0]))))
		binary.NativeEndian.PutUint64(v[valueData+8:], uint64(n))
		rc := clib.Call(c.fn.put, scopeGlobal, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&v[0])))
		runtime.KeepAlive(value)
		return rc
	})
	if err != nil {
		return err
	}
	return c.check("put", key, -1, status)
}

// Fence waits until all ranks have called it; what they put before can be got after. It always carries data: under
// Slurm's plugin (22.05) a fence without data is over when the ranks of this node have come. If a rank ended
// without calling it, the error is [ErrLost] where the server notices (Open MPI's does, or forgets the rank: then
// its values are not found). Else the others wait until ctx ends, or for Config.Timeout if ctx has no deadline.
func (c *Client) Fence(ctx context.Context) error {
	status, err := c.call(ctx, "fence", "", -1, func(left time.Duration) uintptr {
		if status := clib.Call(c.fn.commit); int32(status) != statusSuccess {
			return status
		}
		everybody := proc(c.namespace, rankWildcard)
		attributes := encode([]info{{attrCollect, typeBool, 1}, {attrTimeout, typeInt, seconds(left)}})
		return clib.Call(c.fn.fence, uintptr(unsafe.Pointer(&everybody[0])), 1, uintptr(unsafe.Pointer(&attributes[0])), 2)
	})
	if err != nil {
		return err
	}
	return c.check("fence", "", -1, status)
}

// Get is the value that a rank put under a key before the last Fence; if it did not,
// the error is [ErrNotFound]. The answer is the caller's.
func (c *Client) Get(ctx context.Context, rank int, key string) ([]byte, error) {
	if rank < 0 || rank >= c.size {
		return nil, &Error{Op: "get", Key: key, Rank: rank, Err: ErrRank, Detail: fmt.Sprintf("ranks run from 0 to %d", c.size-1)}
	}
	_, data, err := c.get(ctx, uint32(rank), key)
	return data, err
}

func (c *Client) number(ctx context.Context, rank uint32, key string) (int, error) {
	n, _, err := c.get(ctx, rank, key)
	return int(n), err
}

func (c *Client) get(ctx context.Context, rank uint32, key string) (number uint64, data []byte, err error) {
	who := int(rank)
	if rank == rankWildcard {
		who = -1
	}
	// A call that is given up may still write these.
	var n uint64
	var value []byte
	var decodeErr error
	status, err := c.call(ctx, "get", key, who, func(left time.Duration) uintptr {
		name, of, out := clib.Bytes(key), proc(c.namespace, rank), new(uintptr)
		// Immediate: a key that is not there after a fence never will be.
		attributes := encode([]info{{attrImmediate, typeBool, 1}, {attrTimeout, typeInt, seconds(left)}})
		status := clib.Call(c.fn.get, uintptr(unsafe.Pointer(&of[0])), uintptr(unsafe.Pointer(&name[0])),
			uintptr(unsafe.Pointer(&attributes[0])), 2, uintptr(unsafe.Pointer(out)))
		if int32(status) == statusSuccess {
			n, value, decodeErr = decode(*out)
		}
		return status
	})
	if err == nil {
		err = c.check("get", key, who, status)
	}
	if err == nil && decodeErr != nil {
		err = &Error{Op: "get", Key: key, Rank: who, Err: decodeErr}
	}
	if err != nil {
		return 0, nil, err
	}
	return n, value, nil
}

// Finalize says goodbye to the server. Servers take a rank that ends without it for a
// failure. Calls after it fail with [ErrClosed].
func (c *Client) Finalize(ctx context.Context) error {
	status, err := c.call(ctx, "finalize", "", -1, func(time.Duration) uintptr {
		c.closed = true
		return clib.Call(c.fn.finalize, 0, 0)
	})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.check("finalize", "", -1, status)
}

// call runs f, which blocks inside the library, until f returns, ctx ends or, if ctx has no deadline,
// Config.Timeout is over. A deadline of ctx may be later than that: ranks may start late. One call is under way at
// a time. A call that overstayed keeps its turn until it returns, so that later ones time out instead of piling up
// threads.
func (c *Client) call(ctx context.Context, op, key string, rank int, f func(left time.Duration) uintptr) (int, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(c.cfg.Timeout)
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, deadline)
		defer stop()
	}
	expired := func(doing string) error {
		err := context.Cause(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", ErrTimeout, err)
		}
		return &Error{Op: op, Key: key, Rank: rank, Err: err, Detail: doing}
	}
	select {
	case <-c.turn:
	case <-ctx.Done():
		return 0, expired("an earlier call has not returned")
	}
	if c.closed {
		c.turn <- struct{}{}
		return 0, &Error{Op: op, Key: key, Rank: rank, Err: ErrClosed}
	}
	result := make(chan int, 1)
	go func() {
		status := int(int32(f(time.Until(deadline))))
		c.turn <- struct{}{}
		result <- status
	}()
	select {
	case status := <-result:
		return status, nil
	case <-ctx.Done():
		return 0, expired("the server has not answered")
	}
}

func (c *Client) check(op, key string, rank, status int) error {
	if status == statusSuccess {
		return nil
	}
	e := &Error{Op: op, Key: key, Rank: rank, Status: status, Err: ErrFailed,
		Detail: clib.String(clib.Call(c.fn.errorString, uintptr(status)), 256)}
	switch status {
	case statusNotFound:
		e.Err = ErrNotFound
	case statusPartial:
		e.Err = ErrLost
	case statusTimeout:
		e.Err = ErrTimeout
	}
	return e
}

// seconds is a PMIX_TIMEOUT: whole seconds, at least one, since 0 means for ever. It is
// longer than what is left, so that the caller's own deadline is the one that is seen.
func seconds(left time.Duration) uint64 {
	return uint64(min(max(left.Seconds()+1, 1), math.MaxInt32))
}
