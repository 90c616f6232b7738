// Package pmi speaks PMI-1 and PMI-2, the protocols by which process managers
// (srun --mpi=pmi2, mpiexec.hydra and its relatives) let the processes they start
// exchange addresses. It is written in Go alone and needs no library of the site.
//
// Both protocols offer a key-value space: each rank puts what it has to say, all
// of them fence, then each gets what the others said. The limits that servers
// keep silently (sizes, characters, a key put twice) are kept here with errors.
package pmi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Lookup answers for one environment variable, as os.LookupEnv does.
type Lookup = func(name string) (value string, ok bool)

// Config has tuning that is seldom needed.
type Config struct {
	// Timeout bounds the wait for one answer where the context has no deadline; 0 is
	// 60 s.
	Timeout time.Duration
	// FenceTimeout bounds Fence likewise, which waits for the slowest rank; 0 is
	// 5 min.
	FenceTimeout time.Duration
	// Version forces PMI-1 or PMI-2; 0 takes PMI-2 with Slurm and PMI-1 with others, since with these versions a
	// fence is a barrier.
	Version int
}

// Client is the connection to the process manager. Its methods may be called from
// any goroutine; they run one after the other. An operation that failed for
// another reason than its arguments or a missing key leaves the conversation
// undefined, and all later ones fail with the same error.
type Client struct {
	cfg Config

	mu       sync.Mutex
	link     *link
	protocol protocol
	who      identity
	put      map[string]bool // keys this rank has put
	broken   error
}

// identity is who this process is to the process manager.
type identity struct {
	rank, size int
	job        string
}

// protocol is what differs between PMI-1 and PMI-2.
type protocol interface {
	start(who identity) (identity, error)
	partBytes(key string) int // how much of a value fits one request
	put(key, value string) error
	get(key string) (string, error)
	fence() error
	finalize() error
}

// Rank is this process's rank.
func (c *Client) Rank() int { return c.who.rank }

// Size is the number of ranks.
func (c *Client) Size() int { return c.who.size }

// JobID names the job: "JOB.STEP" under Slurm, the name of the key-value space
// elsewhere. All ranks have the same; no other job of the process manager has it.
func (c *Client) JobID() string { return c.who.job }

// Put publishes a value of up to MaxValueBytes under a key of at most MaxKeyBytes
// letters, digits, '.', '_' and '-'. Others see it after a Fence that all ranks
// have called; whether this rank sees it earlier depends on the server. A key may
// be put once in the life of the job, since servers disagree on which one stays.
//
// Large values go in parts of at most 700 bytes. The value is copied.
func (c *Client) Put(ctx context.Context, key string, value []byte) error {
	return c.do(ctx, "put", key, c.cfg.Timeout, func() error {
		if len(value) > MaxValueBytes {
			return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(value), MaxValueBytes)
		}
		if err := checkKey(key, 1); err != nil {
			return err
		}
		room := c.protocol.partBytes(partKey(key, 999))
		if room < 1 {
			return fmt.Errorf("%w: no room for a value beside it", ErrKey)
		}
		parts := splitValue(value, room)
		if err := checkKey(key, len(parts)); err != nil {
			return err
		}
		for i := range parts {
			if c.put[partKey(key, i)] {
				return fmt.Errorf("%w: put before", ErrKey)
			}
		}
		for i, part := range parts {
			c.put[partKey(key, i)] = true
			if err := c.protocol.put(partKey(key, i), part); err != nil {
				return err
			}
		}
		return nil
	})
}

// Get is the value that some rank put before the last Fence. A key that nobody put
// is ErrNotFound. The answer is the caller's.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	err = c.do(ctx, "get", key, c.cfg.Timeout, func() error {
		if err := checkKey(key, 1); err != nil {
			return err
		}
		value, err = joinValue(func(part int) (string, error) { return c.protocol.get(partKey(key, part)) })
		return err
	})
	return value, err
}

// Fence waits until all ranks have called it; what they put before can be got
// after. Under Hydra with PMI-2 it may return earlier, and Get waits instead. It
// never returns by itself once a rank has ended without calling it, so a deadline
// is needed: that of ctx, else Config.FenceTimeout.
func (c *Client) Fence(ctx context.Context) error {
	return c.do(ctx, "fence", "", c.cfg.FenceTimeout, func() error { return c.protocol.fence() })
}

// Finalize says goodbye and closes the connection. Hydra takes a process that
// ends without it for a failure and kills the others. After the last Fence let
// ranks meet once more over their own connections before they finalize: a fence
// may end here while others still dial this process.
func (c *Client) Finalize(ctx context.Context) error {
	err := c.do(ctx, "finalize", "", c.cfg.Timeout, func() error { return c.protocol.finalize() })
	return errors.Join(err, c.Close())
}

// Close closes the connection without a goodbye. A second call does nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.broken, ErrClosed) {
		return nil
	}
	c.broken = ErrClosed
	if err := c.link.conn.Close(); err != nil {
		return &Error{Op: "close", Err: err}
	}
	return nil
}

// do runs one operation under the lock with a deadline that also ends with ctx.
func (c *Client) do(ctx context.Context, op, key string, timeout time.Duration, f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return &Error{Op: op, Key: key, Err: c.broken, Detail: "earlier"}
	}
	err := c.link.within(ctx, timeout, f)
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrKey) && !errors.Is(err, ErrTooLarge) {
		c.broken = err
	}
	return &Error{Op: op, Key: key, Err: err}
}

// within runs f with a deadline on the connection: that of ctx, else timeout from
// now. It ends early when ctx does.
func (l *link) within(ctx context.Context, timeout time.Duration, f func() error) error {
	if ctx.Err() != nil {
		return errors.Join(ErrTimeout, context.Cause(ctx))
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(timeout)
	}
	if err := l.conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("deadline: %w", err)
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = l.conn.SetDeadline(time.Unix(1, 0)) // the read below returns at once
	})
	err := f()
	if ok && errors.Is(err, ErrTimeout) {
		<-ctx.Done() // it ends at the same time, and has the cause
	}
	if !stop() {
		<-ended // or it would cut short the next operation
	}
	if errors.Is(err, ErrTimeout) && ctx.Err() != nil {
		return errors.Join(ErrTimeout, context.Cause(ctx))
	}
	return err
}
