package mpitest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// SoakVariable names the environment variable that says how long Soak runs.
const SoakVariable = "FISTERRA_SOAK"

// Soak mixes all calls on messages and windows over random sizes and tags, on several communicators
// from several goroutines, and checks every byte, for the duration in FISTERRA_SOAK or
// else for three seconds. It starts world after world of n ranks; each draws a seed, which
// errors name.
func Soak(t *testing.T, n int, run Runner) {
	duration := 3 * time.Second
	if v := os.Getenv(SoakVariable); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("%s=%q is not a duration such as 10m: %v", SoakVariable, v, err)
		}
		duration = d
	}
	worlds := 0
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); worlds++ {
		seed := rand.Uint64()
		run(t, n, func(ctx context.Context, c *mpi.Comm) error {
			agreed, err := agreeSeed(ctx, c, seed)
			if err != nil {
				return err
			}
			if err := SoakWorld(ctx, c, agreed); err != nil {
				return fmt.Errorf("seed %d: %w", agreed, err)
			}
			return nil
		})
	}
	t.Logf("%d worlds of %d ranks", worlds, n)
}

// agreeSeed gives every rank rank 0's: ranks may be processes of their own.
func agreeSeed(ctx context.Context, c *mpi.Comm, seed uint64) (uint64, error) {
	v := []uint64{seed}
	if c.Rank() > 0 {
		_, err := mpi.Recv(ctx, c, v, 0, 0)
		return v[0], err
	}
	for r := 1; r < c.Size(); r++ {
		if err := mpi.Send(ctx, c, v, r, 0); err != nil {
			return 0, err
		}
	}
	return seed, nil
}

// The plan of a world follows from the seed alone, so that every rank knows
// what it will be sent.
const (
	soakGoroutines = 3
	soakRounds     = 25
	soakMessages   = 40 // of all ranks together, in each round of each goroutine
	wildTag        = 7  // received from any rank; the message says who it is
	takenBackTag   = 13 // sent, and taken back
	exchangeTag    = 14
	silentTag      = 15 // nobody sends it
)

// planned is one message.
type planned struct {
	id       uint64
	src, dst int
	tag      int
	size     int
}

// SoakWorld is Soak's work on one world: a number of rounds that follow from
// the seed. All ranks call it with the same seed.
func SoakWorld(ctx context.Context, c *mpi.Comm, seed uint64) error {
	dup, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	mirror, err := c.Split(ctx, 0, -c.Rank()) // the ranks in reverse
	if err != nil {
		return err
	}
	windows := make([]*mpi.Comm, soakGoroutines)
	for g := range windows {
		if windows[g], err = c.Dup(ctx); err != nil {
			return err
		}
	}
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	// Each goroutine has tags of its own on communicators that all share, and a window of its own.
	return together(soakGoroutines, func(g int) (err error) {
		defer func() {
			if err != nil {
				fail() // the others would wait for this one
			}
		}()
		w, free, err := newSoakWindow(ctx, windows[g], seed+uint64(g))
		if err != nil {
			return err
		}
		s := &soak{comms: []*mpi.Comm{c, dup, mirror}, g: g, seed: seed,
			own: rand.New(rand.NewPCG(seed, uint64(g)<<32|uint64(c.Rank()+1)))}
		for round := range soakRounds {
			comm := s.comms[(round+g)%len(s.comms)]
			if err := s.round(ctx, comm, round); err != nil {
				return fmt.Errorf("goroutine %d, round %d on %s: %w", g, round, comm.Name(), err)
			}
			if err := w.round(ctx, round); err != nil {
				return fmt.Errorf("goroutine %d, round %d of its window: %w", g, round, err)
			}
		}
		return free()
	})
}

type soak struct {
	comms []*mpi.Comm
	g     int
	seed  uint64
	own   *rand.Rand // this rank's choice of calls

	started []*mpi.Persistent // of the round
	posted  []posted
}

// posted is a receive that waits for a message by a Persistent.
type posted struct {
	p   *mpi.Persistent
	m   *planned
	buf []byte
}

// tag keeps goroutines and rounds apart.
func (s *soak) tag(round, k int) int { return 1 + (round*soakGoroutines+s.g)*16 + k }

// plan draws a round's messages, the same on every rank.
func (s *soak) plan(size, round int) []planned {
	r := rand.New(rand.NewPCG(s.seed, uint64(round)<<16|uint64(s.g)))
	plan := make([]planned, soakMessages)
	for i := range plan {
		n := r.IntN(300)
		switch r.IntN(12) {
		case 0:
			n = r.IntN(40_000)
		case 1:
			n = r.IntN(400_000)
		case 2:
			n = 0
		}
		m := planned{id: r.Uint64(), src: r.IntN(size), dst: r.IntN(size), tag: s.tag(round, r.IntN(6)), size: n}
		if r.IntN(5) == 0 {
			m.tag, m.size = s.tag(round, wildTag), 16+n
		}
		plan[i] = m
	}
	return plan
}

func (m *planned) bytes(seed uint64) []byte {
	b := filled(m.id^seed, m.size)
	if m.size >= 16 {
		binary.LittleEndian.PutUint64(b, m.id) // wildcard receives learn from it what it is
	}
	return b
}

func (m *planned) verify(b []byte, seed uint64) error {
	if len(b) != m.size {
		return fmt.Errorf("%d B, want %d", len(b), m.size)
	}
	if m.size < 16 {
		return verify(b, m.id^seed)
	}
	if got := binary.LittleEndian.Uint64(b); got != m.id {
		return fmt.Errorf("message %#x, want %#x of %d B: another came first", got, m.id, m.size)
	}
	copy(b[:8], filled(m.id^seed, 8))
	return verify(b, m.id^seed)
}

// round sends and receives what the plan says, each message by a call drawn at
// random.
func (s *soak) round(ctx context.Context, c *mpi.Comm, round int) error {
	plan := s.plan(c.Size(), round)
	var out, in []mpi.Request
	s.started, s.posted = s.started[:0], s.posted[:0]
	var bufs [][]byte
	var want []*planned
	wild := make(map[uint64]*planned)
	var later []*planned // received by blocking calls, in order
	for i := range plan {
		m := &plan[i]
		if m.dst != c.Rank() {
			continue
		}
		switch {
		case m.tag == s.tag(round, wildTag):
			wild[m.id] = m
		case s.postsEarly(m, round):
			buf := make([]byte, m.size+s.own.IntN(9))
			if s.persists(m, round) {
				p := mpi.RecvInit(c, buf, m.src, m.tag)
				if err := p.Start(); err != nil {
					return err
				}
				s.posted = append(s.posted, posted{p, m, buf})
				break
			}
			in, bufs, want = append(in, mpi.Irecv(c, buf, m.src, m.tag)), append(bufs, buf), append(want, m)
		default:
			later = append(later, m)
		}
	}
	doomed := mpi.Irecv(c, make([]byte, 8), mpi.AnySource, s.tag(round, silentTag))
	for i := range plan {
		m := &plan[i]
		if m.src != c.Rank() {
			continue
		}
		switch b := m.bytes(s.seed); {
		case s.own.IntN(3) == 0 && m.dst != c.Rank() && m.size < 300:
			if err := mpi.Send(ctx, c, b, m.dst, m.tag); err != nil {
				return err
			}
		case s.own.IntN(4) == 0:
			p := mpi.SendInit(c, b, m.dst, m.tag)
			if err := p.Start(); err != nil {
				return err
			}
			s.started = append(s.started, p)
		default:
			out = append(out, mpi.Isend(c, b, m.dst, m.tag))
		}
	}
	doomed.Cancel()
	if err := wants("cancelled receive", wait(ctx, doomed), mpi.ErrCancelled); err != nil {
		return err
	}
	if err := s.takeBack(ctx, c, round); err != nil {
		return err
	}
	if err := s.exchange(ctx, c, round); err != nil {
		return err
	}
	if err := s.receive(ctx, c, later); err != nil {
		return err
	}
	if err := s.receiveWild(ctx, c, wild, s.tag(round, wildTag)); err != nil {
		return err
	}
	for left := len(in); left > 0; left-- {
		i, status, err := s.one(ctx, in)
		if err != nil {
			return err
		}
		m := want[i]
		if err := errors.Join(is(status, m.src, m.tag, m.size), m.verify(bufs[i][:m.size], s.seed)); err != nil {
			return fmt.Errorf("from rank %d: %w", m.src, err)
		}
	}
	for _, r := range s.posted {
		status, err := r.p.Wait(ctx)
		if err := errors.Join(err, is(status, r.m.src, r.m.tag, r.m.size)); err != nil {
			return err
		}
		if err := r.m.verify(r.buf[:r.m.size], s.seed); err != nil {
			return fmt.Errorf("from rank %d: %w", r.m.src, err)
		}
	}
	for _, p := range s.started {
		if _, err := p.Wait(ctx); err != nil {
			return err
		}
	}
	return mpi.WaitAll(ctx, out)
}

// postsEarly says whether messages of a source and tag are received by
// requests posted before anything is sent. All of one stream go the same way, so that
// they are received in order.
func (s *soak) postsEarly(m *planned, round int) bool {
	return (m.src*31+m.tag*17+round)%2 == 0
}

// persists says whether those are received by RecvInit.
func (s *soak) persists(m *planned, round int) bool { return (m.src+m.tag+round)%3 == 0 }

// one waits for one of the requests and nulls it.
func (s *soak) one(ctx context.Context, rs []mpi.Request) (int, mpi.Status, error) {
	if s.own.IntN(2) == 0 {
		return mpi.WaitAny(ctx, rs)
	}
	for i, r := range rs {
		if r.Null() {
			continue
		}
		status, done, err := r.Test()
		if !done {
			status, err = r.Wait(ctx)
		}
		rs[i] = mpi.Request{}
		return i, status, err
	}
	return -1, mpi.Status{}, errors.New("no request is left")
}
