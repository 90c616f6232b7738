package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// The point-to-point operations, as OSU defines them:
//
//	latency  half a round trip of blocking Send and Recv between ranks 0 and 1
//	fresh    the same, and each message is written by a copy before it is sent, and read by one when it has come
//	bw       a window of Isend/Irecv, then a short answer
//	bibw     the same in both directions at once
//	mbw_mr   bw between rank i and i+P/2, for all i at once
//	pairs    every rank exchanges one message with every other in P−1 rounds
//
// Send and receive buffers are separate and, but for fresh, never rewritten while time is taken. What is not rewritten stays
// in the caches of both ranks, and is quicker to send than what a program has just computed.
var messageOps = map[string]struct {
	kind Kind
	run  func(*messages, context.Context, int, *laps) (float64, error)
}{
	"latency": {Latency, (*messages).latency},
	"fresh":   {Latency, (*messages).fresh},
	"bw":      {Windows, (*messages).bw},
	"bibw":    {Windows, (*messages).bibw},
	"mbw_mr":  {Windows, (*messages).bw},
	"pairs":   {Latency, (*messages).pairs},
}

const (
	tagPing = iota + 1
	tagAnswer
	tagPair
)

// messages is one size of one operation.
type messages struct {
	c          *mpi.Comm
	window     int
	send, recv []byte
	made, used []byte // memory of the rank's own: what fresh copies into send, and where it copies recv
	requests   []mpi.Request
	answer     []byte
}

// checkMessages finds what cannot be measured, in no time.
func checkMessages(op string, ranks int, o Options) error {
	_, ok := messageOps[op]
	switch {
	case !ok:
		return usage("unknown operation %q", op)
	case op != "mbw_mr" && op != "pairs":
		if err := exactlyTwo(op, ranks); err != nil {
			return fmt.Errorf("%w (mbw_mr and pairs take more)", err)
		}
	case ranks < 2 || ranks%2 != 0:
		return usage("%s on %d ranks: an even number is needed", op, ranks)
	}
	if o.Window > MaxWindow {
		return usage("%d messages in flight: at most %d may be", o.Window, MaxWindow)
	}
	return nil
}

func exactlyTwo(op string, ranks int) error {
	if ranks != 2 {
		return usage("%s on %d ranks: exactly 2 are needed", op, ranks)
	}
	return nil
}

// Messages measures a point-to-point operation. All ranks call it; rank 0
// gets each row as soon as it is measured.
func Messages(ctx context.Context, c *mpi.Comm, op string, o Options, row func(Row)) error {
	if err := checkMessages(op, c.Size(), o); err != nil {
		return err
	}
	x := messageOps[op]
	if o.Window <= 0 {
		o.Window = defaultWindow
	}
	most := 0
	for _, n := range o.Sizes {
		most = max(most, n)
	}
	// Memory as those programs have it for which the speed of long messages matters.
	send, err := mpi.Alloc[byte](c, most)
	if err != nil {
		return err
	}
	recv, err := mpi.Alloc[byte](c, most)
	if err != nil {
		return err
	}
	var made, used []byte
	if op == "fresh" {
		if err := affords(most, most); err != nil {
			return err
		}
		made, used = make([]byte, most), make([]byte, most)
	}
	t := timer{c: c, kind: x.kind, o: o}
	for _, n := range o.Sizes {
		m := &messages{c: c, window: o.Window, send: send[:n], recv: recv[:n], requests: make([]mpi.Request, 2*o.Window), answer: make([]byte, 4)}
		if op == "fresh" {
			m.made, m.used = made[:n], used[:n]
		}
		l := o.rootLaps(c)
		samples, calls, err := t.checked(ctx, n, func(ctx context.Context) error { return m.verify(ctx, op) },
			func(ctx context.Context, count int, l *laps) (float64, error) { return x.run(m, ctx, count, l) }, l)
		if err != nil {
			return err
		}
		all, err := toRoot(ctx, c, samples)
		if err != nil {
			return err
		}
		if c.Rank() != 0 {
			continue
		}
		if op == "mbw_mr" {
			samples = slowestPair(all)
		}
		r := rowOf(op, n, c.Size(), [][]float64{samples}, calls)
		r.Tail = l.tail(func(us float64) float64 { return m.lap(op, us) })
		row(r)
	}
	return errors.Join(mpi.Free(c, send), mpi.Free(c, recv))
}

// slowestPair is the time per message over all pairs, which work at the same time: the slowest pair ends last.
func slowestPair(all [][]float64) []float64 {
	of := slices.Clone(all[0])
	for k := range of {
		for _, s := range all {
			of[k] = max(of[k], s[k])
		}
		of[k] /= float64(len(all) / 2)
	}
	return of
}

// lap is what OSU makes of an iteration that took so long at rank 0: half a round trip of a
// latency, in µs; the bandwidth of a window, of all pairs and directions, in 10⁶ B/s.
func (m *messages) lap(op string, us float64) float64 {
	window := float64(len(m.send)*m.window) / us
	switch op {
	case "latency", "fresh":
		return us / 2
	case "bw":
		return window
	case "bibw":
		return 2 * window
	case "mbw_mr":
		return window * float64(m.c.Size()/2)
	}
	return us
}

func (m *messages) latency(ctx context.Context, count int, l *laps) (float64, error) {
	start := time.Now()
	l.begin()
	if m.c.Rank() == 0 {
		for range count {
			if err := mpi.Send(ctx, m.c, m.send, 1, tagPing); err != nil {
				return 0, err
			}
			if _, err := mpi.Recv(ctx, m.c, m.recv, 1, tagPing); err != nil {
				return 0, err
			}
			l.next()
		}
	} else {
		for range count {
			if _, err := mpi.Recv(ctx, m.c, m.recv, 0, tagPing); err != nil {
				return 0, err
			}
			if err := mpi.Send(ctx, m.c, m.send, 0, tagPing); err != nil {
				return 0, err
			}
		}
	}
	return microseconds(start) / float64(2*count), nil
}

// fresh is latency as it is for programs, which compute what they send and use what they receive. The copies that stand for
// that are timed, too. They stay in the caches, as C's do at these lengths: Go's go past them from 1 MiB on.
func (m *messages) fresh(ctx context.Context, count int, l *laps) (float64, error) {
	peer := 1 - m.c.Rank()
	send := func() error {
		memcopy.Copy(m.send, m.made)
		return mpi.Send(ctx, m.c, m.send, peer, tagPing)
	}
	recv := func() error {
		_, err := mpi.Recv(ctx, m.c, m.recv, peer, tagPing)
		memcopy.Copy(m.used, m.recv)
		return err
	}
	first, second := send, recv
	if m.c.Rank() != 0 {
		first, second = recv, send
	}
	start := time.Now()
	l.begin()
	for range count {
		if err := first(); err != nil {
			return 0, err
		}
		if err := second(); err != nil {
			return 0, err
		}
		l.next()
	}
	return microseconds(start) / float64(2*count), nil
}

func (m *messages) bw(ctx context.Context, count int, l *laps) (float64, error) {
	return m.windows(ctx, count, oneWay, l)
}

func (m *messages) bibw(ctx context.Context, count int, l *laps) (float64, error) {
	return m.windows(ctx, count, bothWays, l)
}

type direction int

const (
	oneWay direction = iota
	bothWays
)

// windows sends windows of messages from the lower half of the ranks to the upper.
func (m *messages) windows(ctx context.Context, count int, d direction, l *laps) (float64, error) {
	half := m.c.Size() / 2
	upper := m.c.Rank() >= half
	peer := m.c.Rank() + half
	if upper {
		peer = m.c.Rank() - half
	}
	start := time.Now()
	l.begin()
	for range count {
		n := 0
		if upper || d == bothWays {
			n = m.window
			startReceives(m.requests[:n], m.c, m.recv, peer)
		}
		if !upper || d == bothWays {
			startSends(m.requests[n:n+m.window], m.c, m.send, peer)
			n += m.window
		}
		if err := mpi.WaitAll(ctx, m.requests[:n]); err != nil {
			return 0, err
		}
		var err error
		if upper {
			err = mpi.Send(ctx, m.c, m.answer, peer, tagAnswer)
		} else {
			_, err = mpi.Recv(ctx, m.c, m.answer, peer, tagAnswer)
		}
		if err != nil {
			return 0, err
		}
		l.next()
	}
	return microseconds(start) / float64(count*m.window), nil
}

// startReceives fills rs with receives into buf. It is never inlined, nor is startSends: among the many variables of windows
// theirs would be stored and loaded again for every message.
//
//go:noinline
func startReceives(rs []mpi.Request, c *mpi.Comm, buf []byte, src int) {
	for i := range rs {
		rs[i] = mpi.Irecv(c, buf, src, tagPing)
	}
}

// startSends fills rs with sends from buf.
//
//go:noinline
func startSends(rs []mpi.Request, c *mpi.Comm, buf []byte, dst int) {
	for i := range rs {
		rs[i] = mpi.Isend(c, buf, dst, tagPing)
	}
}

func (m *messages) pairs(ctx context.Context, count int, l *laps) (float64, error) {
	start := time.Now()
	l.begin()
	for range count {
		for round := range m.c.Size() - 1 {
			p := partner(m.c.Rank(), m.c.Size(), round)
			if _, err := mpi.Sendrecv(ctx, m.c, m.send, p, tagPair, m.recv, p, tagPair); err != nil {
				return 0, err
			}
		}
		l.next()
	}
	return microseconds(start) / float64(count), nil
}

// partner pairs, in each of P−1 rounds, a with b where a+b = round modulo P−1; the last rank is paired with the one that is
// left alone. P is even.
func partner(rank, size, round int) int {
	m := size - 1
	if rank == m {
		for p := range m {
			if 2*p%m == round {
				return p
			}
		}
	}
	if p := ((round-rank)%m + m) % m; p != rank {
		return p
	}
	return m
}

// verify runs the operation's pattern once and looks at every byte.
func (m *messages) verify(ctx context.Context, op string) error {
	m.fill()
	if err := barrier(ctx, m.c); err != nil {
		return err
	}
	if err := m.exchange(ctx, op); err != nil {
		return err
	}
	return barrier(ctx, m.c)
}

// fill writes what the others expect of this rank.
func (m *messages) fill() {
	for i := range m.send {
		m.send[i] = pattern(m.c.Rank(), i)
	}
	copy(m.made, m.send)
	clear(m.recv)
	clear(m.used)
}

// exchange runs the operation's pattern once and checks what comes.
func (m *messages) exchange(ctx context.Context, op string) error {
	half := m.c.Size() / 2
	other := (m.c.Rank() + half) % m.c.Size()
	var err error
	switch op {
	case "latency":
		if _, err = m.latency(ctx, 1, nil); err == nil {
			err = m.check(1 - m.c.Rank())
		}
	case "fresh":
		clear(m.send) // it is written again
		if _, err = m.fresh(ctx, 1, nil); err == nil {
			copy(m.recv, m.used)
			err = m.check(1 - m.c.Rank())
		}
	case "pairs":
		for round := 0; round < m.c.Size()-1 && err == nil; round++ {
			p := partner(m.c.Rank(), m.c.Size(), round)
			clear(m.recv)
			if _, err = mpi.Sendrecv(ctx, m.c, m.send, p, tagPair, m.recv, p, tagPair); err == nil {
				err = m.check(p)
			}
		}
	case "bibw":
		if _, err = m.bibw(ctx, 1, nil); err == nil {
			err = m.check(other)
		}
	default:
		if _, err = m.bw(ctx, 1, nil); err == nil && m.c.Rank() >= half {
			err = m.check(other)
		}
	}
	return err
}

func pattern(rank, i int) byte { return byte(i*7 + i/251 + rank*13 + 1) }

func (m *messages) check(from int) error {
	for i, b := range m.recv {
		if want := pattern(from, i); b != want {
			return fmt.Errorf("bench: rank %d: %w: byte %d of %d from rank %d is %#x, not %#x", m.c.Rank(), ErrWrong, i, len(m.recv), from, b, want)
		}
	}
	return nil
}

func microseconds(since time.Time) float64 { return float64(time.Since(since)) / 1e3 }
