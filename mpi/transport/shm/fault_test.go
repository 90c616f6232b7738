package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/procmem"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestKillInFlight kills the peer at all moments of a pull, in both
// directions: the operation ends, the loss is reported, and the memory is the
// caller's.
func TestKillInFlight(t *testing.T) {
	for _, how := range []struct{ part, memory string }{{"expose", ownMemory}, {"pull", ownMemory}, {"expose", mappedMemory}, {"pull", mappedMemory}} {
		const rounds = 6
		part, met := how.part+" "+how.memory, 0 // rounds in which the peer was killed before the end of a transfer
		for round, deadline := 0, time.Now().Add(patience); round < rounds || met == 0; round++ {
			if round >= rounds && time.Now().After(deadline) {
				t.Fatalf("%s: %d peers were killed, and none of them before the end of a transfer", part, round)
			}
			t.Run(fmt.Sprintf("%s/%d", part, round), func(t *testing.T) {
				if killInFlight(t, how.part, how.memory, time.Duration(5+3*(round%rounds))*time.Millisecond) {
					met++
				}
			})
			if t.Failed() {
				return
			}
		}
		t.Logf("%s: %d peers were killed before the end of a transfer", part, met)
	}
}

// killInFlight kills a peer so long after the first transfer with it, and reports whether one was left undone.
func killInFlight(t *testing.T, part, memory string, after time.Duration) (met bool) {
	const n = 32 << 20
	r := openRank(t, 0, 2, func(cfg *Config) { cfg.Copies = 1 })
	p := start(t, r, part, onceIn(memory))
	p.say(t, strconv.Itoa(n))
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.until(func() bool { r.endpoint(1).meet(); return r.endpoint(1).state == up }); err != nil {
		t.Fatal(err)
	}
	buf := bufferFor(t, r, n, memory)
	transfer := func() error { return r.recv(buf) }
	if part == "pull" {
		transfer = func() error { return r.send(1, buf) }
	}
	if err := transfer(); err != nil { // from now on one follows the other
		t.Fatal(err)
	}
	victim := p.Process
	moment := time.AfterFunc(after, func() { victim.Kill() })
	defer moment.Stop()
	for len(r.lost) == 0 {
		pulled := r.fins
		if err := transfer(); err != nil && len(r.lost) == 0 {
			t.Fatal(err)
		}
		met = part == "pull" && r.fins == pulled
	}
	if err := r.until(func() bool { return len(r.pulls) == 0 && len(r.ailing) == 0 }); err != nil {
		t.Fatal(err)
	}
	met = met || len(r.pulled) > 0
	for op, err := range r.pulled {
		if !errors.Is(err, transport.ErrGone) {
			t.Errorf("pull %d completed with %v, want the peer's end", op, err)
		}
	}
	if !errors.Is(r.lost[1], errHangup) {
		t.Errorf("the loss is reported as %v", r.lost[1])
	}
	if o := r.Send(1, &transport.Header{Kind: kindEager}, nil); o != transport.Gone {
		t.Errorf("a send to the dead rank: %v", o)
	}
	return met
}

// TestStoppedPeer stops the peer at all moments of a pull, gives the pull up,
// and lets the peer run on: what it still does must not touch the memory
// after the pull has completed.
func TestStoppedPeer(t *testing.T) {
	for _, memory := range []string{ownMemory, mappedMemory} {
		t.Run(memory, func(t *testing.T) { stoppedPeer(t, memory) })
	}
}

func stoppedPeer(t *testing.T, memory string) {
	const n = 16 << 20
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	r := openRank(t, 0, 2, func(cfg *Config) { cfg.Copies = 1 })
	p := start(t, r, "expose", onceIn(memory))
	p.say(t, strconv.Itoa(n))
	r.mu.Lock()
	defer r.mu.Unlock()

	want := pattern(n, 5)
	dst := bufferFor(t, r, n, memory)
	var key transport.Key
	keys := 0
	r.onto = func(_ int, h *transport.Header, payload []byte) {
		key = transport.Key(payload)
		keys++
	}
	const whenStopped, whenRunning = "given up while the peer was stopped", "given up when the peer ran again"
	ended := map[string]int{}
	const rounds = 40
	for round, deadline := 0, time.Now().Add(patience); round < rounds || ended[whenRunning]+ended[whenStopped] == 0; round++ {
		if round >= rounds && time.Now().After(deadline) {
			t.Fatalf("%d pulls, and none was given up before it was over: %v", round, ended)
		}
		if err := r.until(func() bool { return keys > round }); err != nil {
			t.Fatal(err)
		}
		clear(dst)
		op := uint64(100 + round)
		r.Pull(1, key, dst, op)
		over := func() bool { _, ok := r.pulled[op]; return ok }
		for range random.IntN(60) {
			r.Poll(r)
		}
		p.Process.Signal(unix.SIGSTOP)
		awaitState(t, p.Process.Pid, "T")
		for range random.IntN(30) {
			r.Poll(r)
		}
		r.Abandon(op)
		for range 50 {
			r.Poll(r)
		}
		early := over()
		mark := bytes.Repeat([]byte{0xEE}, n)
		if early {
			copy(dst, mark)
		}
		p.Process.Signal(unix.SIGCONT)
		if err := r.until(over); err != nil {
			t.Fatal(err)
		}
		switch err := r.pulled[op]; {
		case err != nil && early:
			ended[whenStopped]++
		case err != nil:
			ended[whenRunning]++
		case early:
			ended["copied whole while the peer was stopped"]++
		default:
			ended["copied whole in the end"]++
			if !bytes.Equal(dst, want) {
				t.Fatalf("round %d: the pull succeeded with other bytes", round)
			}
		}
		if !early {
			copy(dst, mark)
		}
		// The next key comes after the peer has done what it was at.
		if err := r.offer(1, &transport.Header{Kind: kindFIN}, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.until(func() bool { return keys > round+1 }); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(dst, mark) {
			t.Fatalf("round %d: memory was written after it was given back", round)
		}
	}
	t.Log(ended)
}

// awaitState waits until a process is in a state of /proc/PID/stat.
func awaitState(t *testing.T, pid int, state string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if rest := string(b[bytes.LastIndexByte(b, ')')+2:]); strings.HasPrefix(rest, state) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is not in state %s: %s", pid, state, b)
		}
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// TestFlood has a peer that sends faster than this rank takes: it is held up,
// and neither side's memory grows.
func TestFlood(t *testing.T) {
	r := openRank(t, 0, 2, nil)
	p := start(t, r, "flood", nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	var next uint64
	var fault error
	r.onto = func(_ int, h *transport.Header, payload []byte) {
		if h.Token != next && fault == nil {
			fault = fmt.Errorf("message %d came in place %d", h.Token, next)
		}
		next++
	}
	ep := r.endpoint(1)
	if err := r.until(func() bool { ep.meet(); return ep.state == up || len(r.lost) > 0 }); err != nil {
		t.Fatal(err)
	}
	if got := p.line(t); got != "held up" { // while nothing is taken
		t.Fatalf("it says %q", got)
	}
	if err := r.until(func() bool { return next >= 20_000 || fault != nil || len(r.lost) > 0 }); err != nil {
		t.Fatal(err)
	}
	if fault != nil || len(r.lost) > 0 {
		t.Fatalf("after %d messages: %v; lost: %v", next, fault, r.lost)
	}
	if size := ep.out.ring.size; size != 0 {
		t.Errorf("this rank sent nothing and has %d bytes of ring", size)
	}
}

// TestLimits refuses what the process may not have, as an error.
func TestLimits(t *testing.T) {
	for _, part := range []string{"limit", "doorbell"} {
		r := openRank(t, 0, 2, nil)
		p := start(t, r, part, nil)
		if got := p.line(t); got != "refused" {
			t.Errorf("%s: the limited process says %q", part, got)
		}
	}
}

// TestHangupBeforeLink: a peer that ends as soon as the two have met is lost, also
// if its end is told before the link.
func TestHangupBeforeLink(t *testing.T) {
	rs := openWorld(t, 2, nil)
	r := rs[0]
	l, err := r.linked(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := rs[1].Close(); err != nil {
		t.Fatal(err)
	}
	var events []event
	for deadline := time.Now().Add(patience); len(events) < 2; {
		r.news.mu.Lock()
		events = append(events, r.news.events...)
		r.news.events = nil
		r.news.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatalf("told: %+v", events)
		}
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	r.tell(event{rank: 1, link: l, changed: true})
	r.tell(event{rank: 1, link: l})
	r.mu.Lock()
	defer r.mu.Unlock()
	for range 2 {
		r.Poll(r)
	}
	if !errors.Is(r.lost[1], errHangup) {
		t.Errorf("the loss is reported as %v", r.lost[1])
	}
}

// mayCopy skips where the kernel does not let processes copy each other's memory.
func mayCopy(t *testing.T) {
	t.Helper()
	if _, _, err := procmem.PerByte(); err != nil {
		t.Skip("the kernel does not let processes copy here:", err)
	}
}

// pulling is two ranks of which the second has begun to pull a unit of the first's memory.
func pulling(t *testing.T, op uint64) []*testRank {
	t.Helper()
	rs := openWorld(t, 2, func(cfg *Config) { cfg.Copies = 1 })
	meetAll(t, rs)
	mayCopy(t)
	key, ok := rs[0].Expose(1, pattern(unitBytes, 1))
	if !ok {
		t.Fatal("not exposed:", rs[0].Path(1))
	}
	if o := rs[1].Pull(0, key, make([]byte, unitBytes), op); o != transport.Sent {
		t.Fatal(o)
	}
	return rs
}

// TestMalformedClaim: a peer that writes nonsense where the two share out a pull is lost.
func TestMalformedClaim(t *testing.T) {
	const op = 7
	rs := pulling(t, op)
	pl := rs[1].pulls[0]
	pl.slot.state.Store(uint64(ends(phasePulling, pl.units+1, pl.units+2)))
	deadline := time.Now().Add(patience)
	for over := false; !over; _, over = rs[1].pulled[op] {
		for _, r := range rs {
			r.mu.Lock()
			r.Poll(r)
			r.mu.Unlock()
		}
		if time.Now().After(deadline) {
			t.Fatalf("the pull is not over; lost: %v", rs[1].lost)
		}
	}
	if err := rs[1].lost[0]; !errors.Is(err, errMalformed) {
		t.Errorf("the loss is reported as %v, want %v", err, errMalformed)
	}
	if err := rs[1].pulled[op]; !errors.Is(err, errMalformed) || !errors.Is(err, transport.ErrGone) {
		t.Errorf("the pull completed with %v, want %v because of %v", err, transport.ErrGone, errMalformed)
	}
}

// midCopy is a rank that does something else in the middle of a copy.
type midCopy struct {
	*testRank
	do func()
}

func (m midCopy) Outside(work func()) { m.do(); work() }

// TestLeaveWhileCopying: the peer is not told that this rank has left as long as it copies.
func TestLeaveWhileCopying(t *testing.T) {
	rs := pulling(t, 7)
	conn := rs[1].endpoint(0).link.conn
	say := func() error {
		return sendPacket(conn, binary.BigEndian.AppendUint64([]byte{packetNone}, 99)) // nobody has asked
	}
	copies := 0
	rs[1].Poll(midCopy{rs[1], func() {
		copies++
		rs[1].Detach(0)
		if err := say(); err != nil {
			t.Errorf("the socket in the middle of a copy: %v", err)
		}
	}})
	if err := say(); copies != 1 || !atEnd(err) {
		t.Errorf("the socket after %d copies, want 1: %v, want its end", copies, err)
	}
}

// TestFaultOfSocket: a rank that cannot make sense of what a peer asks loses it, but does not take
// it for dead as long as it lives.
func TestFaultOfSocket(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	l := rs[0].endpoint(1).link
	if err := writePacket(rs[1].endpoint(0).link.conn, []byte("?")); err != nil {
		t.Fatal(err)
	}
	rs[0].mu.Lock()
	err := rs[0].until(func() bool { return len(rs[0].lost) > 0 })
	hungup := rs[0].endpoint(1).hungup
	rs[0].mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if hungup || !errors.Is(rs[0].lost[1], errMalformed) {
		t.Errorf("the loss is reported as %v, the peer taken for dead: %v", rs[0].lost[1], hungup)
	}
	if _, err := rs[0].Import(t.Context(), 1, make([]byte, handleBytes)); err == nil {
		t.Error("an Import from the lost rank")
	}
	rs[1].mu.Lock()
	err = rs[1].until(func() bool { return len(rs[1].lost) > 0 })
	rs[1].mu.Unlock()
	if err != nil || !errors.Is(rs[1].lost[0], errHangup) {
		t.Errorf("the other rank: %v, lost with %v", err, rs[1].lost[0])
	}
	<-l.ended
}

// TestRingWithoutMemory: a pair whose byte ring gets no memory is lost with
// the reason, and what was being sent ends with its loss; one whose ring cannot grow goes on.
func TestRingWithoutMemory(t *testing.T) {
	const op = 7
	for _, limit := range []uint32{0, firstRing} {
		rs := openWorld(t, 2, func(cfg *Config) { cfg.Copies = 2 })
		meetAll(t, rs)
		ep := rs[0].endpoint(1)
		real := ep.out.ring.more
		ep.out.ring.more = func(from, to uint32) error {
			if to > limit {
				return unix.ENOSPC
			}
			return real(from, to)
		}
		big := pattern(3<<20, 4)
		rs[1].into = make([]byte, len(big))
		into := rs[1].into
		h := transport.Header{Kind: transport.Data, Bytes: uint64(len(big))}
		rs[0].SendFrom(1, &h, big, op)
		deadline := time.Now().Add(patience)
		for rs[1].placed == 0 && len(rs[0].lost) == 0 && time.Now().Before(deadline) {
			for _, r := range rs {
				r.mu.Lock()
				r.Poll(r)
				r.mu.Unlock()
			}
		}
		switch {
		case limit == 0 && !errors.Is(rs[0].lost[1], unix.ENOSPC):
			t.Errorf("without memory: lost with %v", rs[0].lost[1])
		case limit == 0 && !errors.Is(rs[0].pulled[op], transport.ErrGone):
			t.Errorf("without memory: the send completed with %v, want %v", rs[0].pulled[op], transport.ErrGone)
		case limit > 0 && (rs[1].placed != 1 || !bytes.Equal(into, big)):
			t.Errorf("with a ring of %d bytes: placed %d, lost %v", limit, rs[1].placed, rs[0].lost)
		}
	}
}

// meetAll connects all pairs of ranks of this process. The lower rank of a pair dials, so that
// tests may set what it does from then on.
func meetAll(t testing.TB, rs []*testRank) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		all := true
		for i, r := range rs {
			r.mu.Lock()
			for j := range rs {
				if i < j {
					r.endpoint(j).meet()
				}
				if i != j {
					all = all && r.endpoint(j).state == up
				}
			}
			r.Poll(r)
			r.mu.Unlock()
		}
		if all {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the ranks have not met")
		}
	}
}
