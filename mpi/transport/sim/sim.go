// Package sim is a simulated fabric: a transport whose ranks are goroutines of
// one process. It is what the layers above are tested on, and what they are
// measured on at sizes that no test machine has.
//
// # Real time
//
// By default messages are delayed by a random time that depends only on the seed,
// the pair of ranks and the message's place in that pair's order, so messages of different pairs
// overtake each other and those of one pair never do. Links can be cut (what is
// sent is lost in silence, as when a cable is pulled), ranks can be killed (peers hear of it
// after Config.DetectAfter, as a kernel closes a dead process's connections)
// and the ranks can be partitioned. The fabric starts no goroutine and waits on
// channels only, so that a testing/synctest bubble can own its clock.
//
// # Virtual time
//
// With Config.Network the fabric has a clock of its own and links after the LogGP
// model (loggp.go). Ranks run as coroutines of Fabric.Run, one at a time, in
// an order that depends on nothing but the program; a run repeats exactly. See
// schedule.go.
package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Config describes a fabric. Only Ranks has to be set.
type Config struct {
	// Ranks is the number of ranks, at least 1.
	Ranks int

	// Seed determines all randomness. 0 draws one; Fabric.Seed tells it, and
	// it is logged.
	Seed uint64

	// MinDelay and MaxDelay bound the time a message travels, drawn uniformly.
	// Zero for both delivers at once. Real time only.
	MinDelay, MaxDelay time.Duration

	// DetectAfter is how long after Kill the peers are told.
	DetectAfter time.Duration

	// EagerBytes, RendezvousBytes, PullBytes and CreditBytes are what Caps
	// reports. Zero is 16 KiB, 8 KiB, 64 KiB and 1 MiB in real time, and the network's
	// protocol switch in virtual time.
	EagerBytes, RendezvousBytes, PullBytes, CreditBytes int

	// QueueBytes is what may be under way from one rank to another before
	// Send reports Full, counting transport.EnvelopeBytes for each message. 0 is 1 MiB.
	QueueBytes int

	// ChunkBytes is what one Poll copies at most in real time. 0 is 256 KiB.
	ChunkBytes int

	// Network turns virtual time on and says what the links cost.
	Network *Network

	// SizesOnly carries the lengths of payloads, not their bytes, so that
	// ranks may share one buffer of the largest size. Payloads of up to CarriedBytes
	// travel nevertheless. Virtual time only.
	SizesOnly bool

	// Log is told the seed and each fault. Nil is silent.
	Log *slog.Logger
}

// CarriedBytes is the largest payload whose bytes travel with SizesOnly: the
// layers above keep their control messages.
const CarriedBytes = 256

const (
	defaultEagerBytes      = 16 << 10
	defaultRendezvousBytes = 8 << 10
	defaultPullBytes       = 64 << 10
	defaultCreditBytes     = 1 << 20
	defaultQueueBytes      = 1 << 20
	defaultChunkBytes      = 256 << 10
)

var (
	// ErrConfig: the fabric's Config makes no sense.
	ErrConfig = errors.New("sim: bad configuration")
	// ErrKilled is what a killed rank's own operations end with, and what its
	// peers are told.
	ErrKilled = errors.New("sim: rank was killed")
	// ErrHungUp is what peers are told of a rank that closed its end.
	ErrHungUp = errors.New("sim: peer closed the connection")
	// ErrAbandoned completes an operation that was given up by Abandon.
	ErrAbandoned = errors.New("sim: operation abandoned")
	// ErrWithdrawn completes a Pull of memory that is not exposed any more. It wraps transport.ErrGone.
	ErrWithdrawn = fmt.Errorf("%w: sim: memory is no longer exposed", transport.ErrGone)
)

// Fabric connects ranks. Its own methods are safe for any goroutine.
type Fabric struct {
	cfg   Config
	err   error // of the Config, reported by Open
	start time.Time
	ranks []Provider
	blank []byte    // what eager payloads look like with SizesOnly
	free  sync.Pool // of *message

	virtual *schedule // nil in real time

	cuts  atomic.Int32 // how many entries cut has, so that nobody locks without need
	cutMu sync.RWMutex
	cut   map[[2]int]struct{}
}

// New makes a fabric. A bad Config is reported by Open and Run, as an error
// that wraps ErrConfig.
func New(cfg Config) *Fabric {
	f := &Fabric{start: time.Now(), cut: make(map[[2]int]struct{})}
	f.err = cfg.check()
	if cfg.Ranks < 0 || f.err != nil {
		cfg.Ranks = max(cfg.Ranks, 0)
	}
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	eager, rendezvous, pull, chunk := defaultEagerBytes, defaultRendezvousBytes, defaultPullBytes, defaultChunkBytes
	if n := cfg.Network; n != nil {
		eager, rendezvous, pull, chunk = n.EagerBytes, n.RendezvousBytes, n.RendezvousBytes, math.MaxInt
	}
	orDefault(&cfg.EagerBytes, eager)
	orDefault(&cfg.RendezvousBytes, rendezvous)
	orDefault(&cfg.PullBytes, max(pull, cfg.RendezvousBytes))
	orDefault(&cfg.CreditBytes, defaultCreditBytes)
	orDefault(&cfg.QueueBytes, defaultQueueBytes)
	orDefault(&cfg.ChunkBytes, chunk)
	f.cfg = cfg
	if f.err != nil {
		return f
	}
	f.ranks = make([]Provider, cfg.Ranks)
	for i := range f.ranks {
		f.ranks[i].init(f, i)
	}
	if cfg.Network != nil {
		f.virtual = newSchedule(f)
	}
	if cfg.SizesOnly {
		f.blank = make([]byte, cfg.EagerBytes)
	}
	cfg.Log.Info("simulated fabric", "ranks", cfg.Ranks, "seed", cfg.Seed)
	return f
}

func orDefault(v *int, value int) {
	if *v == 0 {
		*v = value
	}
}

func (c *Config) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Ranks < 1:
		return bad("Ranks is %d, at least 1 is needed", c.Ranks)
	case c.MinDelay < 0 || c.MaxDelay < c.MinDelay:
		return bad("delays from %v to %v, want 0 <= MinDelay <= MaxDelay", c.MinDelay, c.MaxDelay)
	case c.DetectAfter < 0:
		return bad("DetectAfter is %v, want 0 or more", c.DetectAfter)
	case c.SizesOnly && c.Network == nil:
		return bad("SizesOnly needs virtual time: set Network")
	case c.EagerBytes < 0 || c.RendezvousBytes < 0 || c.PullBytes < 0 || c.CreditBytes < 0 || c.QueueBytes < 0 || c.ChunkBytes < 0:
		return bad("a size is negative: EagerBytes %d, RendezvousBytes %d, PullBytes %d, CreditBytes %d, QueueBytes %d, ChunkBytes %d",
			c.EagerBytes, c.RendezvousBytes, c.PullBytes, c.CreditBytes, c.QueueBytes, c.ChunkBytes)
	}
	if c.Network != nil {
		return c.Network.check()
	}
	return nil
}

// carries reports whether the bytes of a payload travel, not its length only.
func (f *Fabric) carries(payloadBytes int) bool {
	return !f.cfg.SizesOnly || payloadBytes <= CarriedBytes
}

// Seed is what all randomness of this fabric follows from.
func (f *Fabric) Seed() uint64 { return f.cfg.Seed }

// Size is the number of ranks.
func (f *Fabric) Size() int { return len(f.ranks) }

// Virtual reports whether the fabric has a clock of its own.
func (f *Fabric) Virtual() bool { return f.virtual != nil }

// Open returns a rank's provider, once for each rank. It offers no
// transport.Memory: use OpenMemory for that.
func (f *Fabric) Open(rank int) (*Provider, error) {
	if f.err != nil {
		return nil, f.err
	}
	if rank < 0 || rank >= len(f.ranks) {
		return nil, fmt.Errorf("%w: rank %d of a fabric of %d", ErrConfig, rank, len(f.ranks))
	}
	p := &f.ranks[rank]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opened {
		return nil, fmt.Errorf("%w: rank %d is open already", ErrConfig, rank)
	}
	p.opened = true
	return p, nil
}

// OpenMemory is Open for a provider whose peers can also pull each other's
// memory.
func (f *Fabric) OpenMemory(rank int) (*MemoryProvider, error) {
	p, err := f.Open(rank)
	if err != nil {
		return nil, err
	}
	return &MemoryProvider{Provider: p}, nil
}

// Kill ends a rank as if its process had died: its own calls fail from now on
// with ErrKilled, what it had sent still arrives, and every other rank is told
// Lost after Config.DetectAfter, unless the link to it is cut. It may be
// called from a rank's own goroutine or any other.
func (f *Fabric) Kill(rank int) {
	p := &f.ranks[rank]
	if !p.die(ErrKilled) {
		return
	}
	f.cfg.Log.Info("simulated fabric: rank killed", "rank", rank)
	at := f.now(p) + int64(f.cfg.DetectAfter)
	for peer := range f.ranks {
		if peer != rank {
			p.hangUp(peer, at, fmt.Errorf("rank %d: %w", rank, ErrKilled))
		}
	}
}

// Killed reports whether Kill was called for a rank.
func (f *Fabric) Killed(rank int) bool {
	d := f.ranks[rank].dead.Load()
	return d != nil && d.err == ErrKilled
}

// Cut loses everything between two ranks in silence, both ways, until Restore.
// What is under way is lost too.
func (f *Fabric) Cut(a, b int) {
	f.cutMu.Lock()
	defer f.cutMu.Unlock()
	f.cutLocked(a, b)
	f.cfg.Log.Info("simulated fabric: link cut", "rank", a, "peer", b)
}

func (f *Fabric) cutLocked(a, b int) {
	f.cut[[2]int{min(a, b), max(a, b)}] = struct{}{}
	f.cuts.Store(int32(len(f.cut)))
}

// Restore ends a Cut of the two ranks. What was lost stays lost.
func (f *Fabric) Restore(a, b int) {
	f.cutMu.Lock()
	defer f.cutMu.Unlock()
	delete(f.cut, [2]int{min(a, b), max(a, b)})
	f.cuts.Store(int32(len(f.cut)))
	f.cfg.Log.Info("simulated fabric: link restored", "rank", a, "peer", b)
}

// Partition cuts every link between ranks of different groups. Ranks that no
// group names form one more group.
func (f *Fabric) Partition(groups ...[]int) {
	side := make([]int, len(f.ranks))
	for i, g := range groups {
		for _, r := range g {
			side[r] = i + 1
		}
	}
	f.cutMu.Lock()
	defer f.cutMu.Unlock()
	for a := range side {
		for b := range a {
			if side[a] != side[b] {
				f.cutLocked(a, b)
			}
		}
	}
	f.cfg.Log.Info("simulated fabric: partitioned", "groups", groups)
}

// Heal restores every link.
func (f *Fabric) Heal() {
	f.cutMu.Lock()
	defer f.cutMu.Unlock()
	clear(f.cut)
	f.cuts.Store(0)
	f.cfg.Log.Info("simulated fabric: healed")
}

// severed reports whether the link between two ranks is cut.
func (f *Fabric) severed(a, b int) bool {
	if f.cuts.Load() == 0 {
		return false
	}
	f.cutMu.RLock()
	defer f.cutMu.RUnlock()
	_, cut := f.cut[[2]int{min(a, b), max(a, b)}]
	return cut
}

// now is a rank's clock in nanoseconds since the fabric was made.
func (f *Fabric) now(p *Provider) int64 {
	if f.virtual != nil {
		return max(p.clock, f.virtual.now)
	}
	return int64(time.Since(f.start))
}

// delay is the time that the n-th message from one rank to another travels.
func (f *Fabric) delay(from, to int, n uint64) int64 {
	span := uint64(f.cfg.MaxDelay - f.cfg.MinDelay)
	if span == 0 {
		return int64(f.cfg.MinDelay)
	}
	x := mix(f.cfg.Seed + mix(uint64(from)<<32|uint64(to)) + n)
	return int64(f.cfg.MinDelay) + int64(x%(span+1))
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable
// pseudorandom number generators, OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

var (
	_ transport.Provider = (*Provider)(nil)
	_ transport.Sleeper  = (*Provider)(nil)
	_ transport.Memory   = (*MemoryProvider)(nil)
)
