package ps

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Config describes a parameter server to all its ranks. Everything but Comm, Window, UnappliedBytes, Deadline and Log
// must be the same on each. Servers refuse requests of a rank that differs in it.
type Config struct {
	// Comm carries the messages. Until the end it belongs to this package: give a
	// Dup if the program sends messages of its own.
	Comm    *mpi.Comm
	Cluster Cluster
	Tables  []Table // none: only the shared step and the barrier
	Mode    Mode    // Async if empty
	Rule    Rule

	// Aggregate is how many workers' gradients make a step in Sync mode; 0 is
	// all. With fewer, the slowest of each step are backup workers: their
	// gradients of that step are dropped and they go on with the new values.
	Aggregate int

	// StaleDiscount makes a server in Async mode divide a gradient by its staleness, if that is above 1: the number
	// of updates that the values have had since the worker fetched them (W. Zhang et al., Staleness-aware
	// Async-SGD, 2016). Without it, a rate that is good for one worker can diverge with several.
	StaleDiscount bool

	// BlockBytes is the size of a full block; 0 is DefaultBlockBytes.
	BlockBytes int
	// Window is how many requests a worker may have open with one server; 0 is 16. Push and Pull block while it is
	// full. With backup workers it is raised to the number of blocks that a table has on one server: the server
	// answers a PushPull only when all of them are there.
	Window int
	// UnappliedBytes bounds the gradients that a server holds and has not applied. 0 is 256 MiB or, if that is
	// more, what backup workers need: the gradients of all workers for the server's share of the tables, since some
	// of them come late. The bound may be exceeded by one block, and by gradients of up to 16 KiB, which come with
	// their header: up to Window of them for each worker. Further gradients wait at the workers. The sums that Sync
	// mode makes, one for each block, come on top: at most once the server's share of the tables.
	UnappliedBytes int
	// Deadline is how long a server waits for a worker that others wait for and
	// that says nothing to this server; 0 is ten minutes. See Worker.Alive.
	Deadline time.Duration
	// Forever keeps servers running when all workers are done, until their
	// context ends; there is no final barrier then. A worker that is done, with whatever status, may come again: in Sync mode
	// steps wait for it, without Deadline, and barriers do not.
	Forever bool

	Log *slog.Logger // nil: nothing is logged
}

// DefaultDeadline is Config.Deadline's default, the other constants those of
// their fields.
const (
	defaultWindow         = 16
	defaultUnappliedBytes = 256 << 20
	DefaultDeadline       = 10 * time.Minute
)

func (c Config) withDefaults() Config {
	if c.Mode == "" {
		c.Mode = Async
	}
	if c.Aggregate == 0 {
		c.Aggregate = len(c.Cluster.Workers)
	}
	if c.BlockBytes == 0 {
		c.BlockBytes = DefaultBlockBytes
	}
	if c.Window == 0 {
		c.Window = defaultWindow
	}
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Rule = c.Rule.WithDefaults()
	return c
}

// validate checks everything that can be checked without a peer.
func (c Config) validate() error {
	if c.Comm == nil {
		return configError("no communicator")
	}
	if err := c.Cluster.Validate(c.Comm.Size()); err != nil {
		return err
	}
	if len(c.Cluster.Servers) == 0 {
		return configError("no ps among %d ranks", c.Comm.Size())
	}
	if c.Mode != Async && c.Mode != Sync {
		return configError("mode %q; there are async and sync", c.Mode)
	}
	if w := len(c.Cluster.Workers); c.Aggregate < 1 || c.Aggregate > w {
		return configError("aggregate the gradients of %d workers of %d", c.Aggregate, w)
	}
	if c.BlockBytes < blockAlign*8 || c.BlockBytes > 1<<30 {
		return configError("blocks of %d bytes; %d to %d are possible", c.BlockBytes, blockAlign*8, 1<<30)
	}
	if c.Window < 1 || c.Window > 1<<16 || c.UnappliedBytes < 0 || c.Deadline < 0 {
		return configError("window %d, unapplied bytes %d, deadline %v; positive numbers are needed, and a window of at most 65536", c.Window, c.UnappliedBytes, c.Deadline)
	}
	return c.Rule.Validate()
}

// backup reports whether steps are made without the slowest workers.
func (c Config) backup() bool { return c.Mode == Sync && c.Aggregate < len(c.Cluster.Workers) }

// fingerprint is equal on ranks whose configurations agree.
func (c Config) fingerprint() uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%v|%v|%v|%v|%v|%v|%v|%v", c.Cluster, c.Tables, c.Mode, c.Rule, c.Aggregate, c.BlockBytes, c.Forever, c.StaleDiscount)
	return h.Sum32()
}

// Explain turns an error of a message on Comm into one that names the lost rank, its role and its host. After an
// mpi.ErrRevoked it looks for a lost rank for up to a second: the rank that revoked the communicator may know of a
// loss that this rank hears of a little later. Other errors are returned as they are.
func (c Config) Explain(ctx context.Context, op string, err error) error {
	if !errors.Is(err, mpi.ErrPeerLost) && !errors.Is(err, mpi.ErrRevoked) {
		return err
	}
	until := time.Now().Add(time.Second)
	for {
		rank, certain := c.blame(c.Comm.Lost())
		over := errors.Is(err, mpi.ErrPeerLost) || time.Now().After(until) || ctx.Err() != nil
		switch {
		case rank >= 0 && (certain || over):
			return peerError(op, c.Comm, c.Cluster, rank, mpi.ErrPeerLost)
		case errors.Is(err, mpi.ErrPeerLost):
			return err
		case over:
			return &Error{Op: op, Err: err, Detail: "another rank has given up; its own message says why"}
		}
		c.Comm.Iprobe(mpi.AnySource, mpi.MaxTag) // looking for a message makes progress
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// blame picks from the lost ranks, which are listed oldest loss first, the one that ended the run; -1 if none is
// lost. In Async mode a run goes on without workers, so a server must have ended it. If only workers are lost so
// far, blame picks the first of them and is not certain: the loss of a server may yet become known.
func (c Config) blame(lost []int) (rank int, certain bool) {
	if len(lost) == 0 {
		return -1, false
	}
	if c.Mode == Sync || len(c.Cluster.Servers) == 0 {
		return lost[0], true
	}
	for _, rank := range lost {
		if slices.Contains(c.Cluster.Servers, rank) {
			return rank, true
		}
	}
	return lost[0], false
}

// peerError says with which rank an exchange failed.
func peerError(op string, c *mpi.Comm, cluster Cluster, rank int, err error) error {
	return &Error{Op: op, Role: cluster.Role(rank), Rank: rank, Host: c.Host(rank), Err: err}
}
