package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// strangersOf is two ranks that have met and whom the kernel lets copy nothing.
func strangersOf(t *testing.T) []*testRank {
	t.Helper()
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	for i, r := range rs {
		r.endpoint(1 - i).vm = false
		r.habit = habit{rendezvousBytes: streamFrom, pullBytes: streamFrom, slow: 1, once: 1, paced: true} // no copy is slow
	}
	return rs
}

// pump polls all ranks until the condition holds.
func pump(t *testing.T, rs []*testRank, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v", patience)
		}
		for _, r := range rs {
			r.mu.Lock()
			r.Poll(r)
			r.mu.Unlock()
		}
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// known waits until a rank may expose its buffer to the other, which has not mapped it before.
func known(t *testing.T, rs []*testRank, from int, buf []byte) transport.Key {
	t.Helper()
	key, ok := rs[from].Expose(1-from, buf)
	if ok {
		t.Fatal("exposed, though the peer has not mapped it")
	}
	pump(t, rs, func() bool { key, ok = rs[from].Expose(1-from, buf); return ok })
	return key
}

// mappedOf is how many segments of its peer a rank has mapped for messages.
func mappedOf(r *testRank) int {
	s := &r.endpoint(1 - r.cfg.Rank).link.sharing
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mapped)
}

// TestMappedMessages: what lies in exported memory is pulled without the kernel and without the ring, by both ranks if the receiver's
// memory is exported, too.
func TestMappedMessages(t *testing.T) {
	const room, at = 12 << 20, 3 // longer than what goes through the caches, and at any address
	rs := strangersOf(t)
	_, src := exported(t, rs[0], room)
	_, there := exported(t, rs[1], room)
	copy(src, pattern(room, 1))
	helped := 0
	for _, n := range []int{mappedFrom, mappedHelpBytes - 1, mappedHelpBytes, mixedHelpBytes + 1, 3 << 20, room - at} {
		for _, memory := range []string{ownMemory, mappedMemory} {
			dst := there[at:][:n:n]
			if memory == ownMemory {
				dst = make([]byte, n)
			}
			for round := range 20 { // the first of them makes the memory known
				clear(dst)
				var key transport.Key
				pump(t, rs, func() (ok bool) { key, ok = rs[0].Expose(1, src[at:][:n]); return ok })
				op := uint64(100)
				delete(rs[1].pulled, op)
				if out := rs[1].Pull(0, key, dst, op); out != transport.Sent {
					t.Fatalf("Pull: %v", out)
				}
				if rs[1].pulls[0].shared {
					helped++
				}
				pump(t, rs, func() bool { _, over := rs[1].pulled[op]; return over })
				if err := rs[1].pulled[op]; err != nil {
					t.Fatalf("%d bytes into %s memory, round %d: %v", n, memory, round, err)
				}
				if !bytes.Equal(dst, src[at:][:n]) {
					t.Fatalf("%d bytes into %s memory, round %d: others came", n, memory, round)
				}
				if !rs[0].Withdraw(1, key) {
					t.Fatal("what has been pulled is not given back")
				}
			}
		}
	}
	if helped == 0 {
		t.Error("the sender never copied its part")
	}
	if n := mappedOf(rs[1]); n != 1 {
		t.Errorf("the receiver has mapped %d segments, want 1", n)
	}
}

// TestShortMessagesAreNotMapped: they, and those in other memory, are not exposed where nothing but mapped memory can be.
func TestShortMessagesAreNotMapped(t *testing.T) {
	rs := strangersOf(t)
	_, src := exported(t, rs[0], 1<<20)
	key := known(t, rs, 0, src)
	rs[0].Withdraw(1, key)
	if _, ok := rs[0].Expose(1, src[:mappedFrom-1]); ok {
		t.Error("a short message is exposed")
	}
	if _, ok := rs[0].Expose(1, make([]byte, mappedFrom)); ok {
		t.Error("other memory is exposed")
	}
	if c := rs[0].Caps(); c.PullBytes != mappedFrom {
		t.Errorf("messages are exposed from %d B on, want %d", c.PullBytes, mappedFrom)
	}
}

// TestMappedNowhere: ranks that are to copy twice map nothing.
func TestMappedNowhere(t *testing.T) {
	rs := openWorld(t, 2, func(c *Config) { c.Copies = 2 })
	meetAll(t, rs)
	_, src := exported(t, rs[0], 1<<20)
	for range 2 {
		if _, ok := rs[0].Expose(1, src); ok {
			t.Error("exposed")
		}
	}
	if n := len(rs[0].endpoint(1).link.sharing.offered); n != 0 {
		t.Errorf("%d segments are offered", n)
	}
}

// TestMappedUntilUnexported: a peer unmaps what is exported no more, after the pulls that read it.
func TestMappedUntilUnexported(t *testing.T) {
	rs := strangersOf(t)
	handle, src := exported(t, rs[0], 1<<20)
	copy(src, pattern(len(src), 1))
	key := known(t, rs, 0, src)
	dst := make([]byte, len(src))
	rs[1].Pull(0, key, dst, 7)
	rs[0].Unexport(handle)
	s := &rs[1].endpoint(0).link.sharing
	withdrawn := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, m := range s.mapped {
			return m.withdrawn
		}
		return true
	}
	pump(t, nil, withdrawn)
	if mappedOf(rs[1]) != 1 {
		t.Fatal("unmapped while a pull reads it")
	}
	pump(t, rs, func() bool { _, over := rs[1].pulled[7]; return over })
	if err := rs[1].pulled[7]; err != nil || !bytes.Equal(dst, pattern(len(src), 1)) {
		t.Errorf("the pull: %v, or others came", err)
	}
	if n := mappedOf(rs[1]); n != 0 {
		t.Errorf("%d segments are mapped after the pull", n)
	}
	rs[0].Withdraw(1, key)
	if _, ok := rs[0].Expose(1, src); ok {
		t.Error("exposed, though it is exported no more")
	}

	again, mem := exported(t, rs[0], 1<<20)
	rs[0].Withdraw(1, known(t, rs, 0, mem))
	rs[0].Unexport(again)
	pump(t, rs, func() bool { return mappedOf(rs[1]) == 0 })
}

// TestMostMapped: a peer that offers without end is not followed.
func TestMostMapped(t *testing.T) {
	var s sharing
	page := func() []byte {
		mem, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		return mem
	}
	for i := range uint64(mostMapped) {
		if !s.keep(i+1, page()) {
			t.Fatalf("segment %d is not kept", i+1)
		}
	}
	mem := page()
	defer unix.Munmap(mem)
	if s.keep(mostMapped+1, mem) {
		t.Error("one more is")
	}
	s.forget(5)
	if s.keep(4, mem) {
		t.Error("a number is kept twice")
	}
	if !s.keep(5, page()) {
		t.Error("none has taken the place of one that was withdrawn")
	}
	s.close()
	if s.keep(6, mem) {
		t.Error("one is kept after the end")
	}
}

// TestOfferToStopped: to a peer that does not read its socket the segment is offered again by the next message.
func TestOfferToStopped(t *testing.T) {
	r := openWorld(t, 2, nil)[0]
	handle, _ := exported(t, r, 1<<20)
	conn, theirs := socketPair(t)
	l := newLink(conn)
	full := error(nil)
	for full == nil {
		full = sendPacket(conn, make([]byte, maxPacket))
	}
	number := binary.BigEndian.Uint64(handle)
	if r.exports.offer(l, number); len(l.sharing.offered) != 0 {
		t.Error("taken for offered")
	}
	fd, err := CreateSegment("fisterra-test", importBytes, importBytes, OrdinaryPages)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := r.accept(l, 1, importBytes, fd); err != nil || len(l.sharing.mapped) != 0 {
		t.Errorf("accepting what it offers: %v, and %d segments are mapped", err, len(l.sharing.mapped))
	}
	buf := make([]byte, maxPacket)
	if _, _, err := readPacket(theirs, buf); err != nil {
		t.Fatal(err)
	}
	if r.exports.offer(l, number); len(l.sharing.offered) != 1 {
		t.Error("not offered")
	}
}

// TestMappedElsewhere: a place that is not mapped, which no rank names, ends the pull or loses the peer.
func TestMappedElsewhere(t *testing.T) {
	for _, c := range []struct {
		name string
		at   spot
	}{
		{"no segment", spot{}},
		{"another segment", spot{77, 0}},
		{"behind the end", spot{1, 1<<20 - mappedFrom + 1}},
		{"far behind the end", spot{1, 1<<64 - 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rs := strangersOf(t)
			_, src := exported(t, rs[0], 1<<20)
			key := known(t, rs, 0, src[:mappedFrom])
			_, _, _, number := keyParts(key)
			rs[0].endpoint(1).exposures.table[number].at = c.at
			dst := make([]byte, mappedFrom)
			rs[1].Pull(0, key, dst, 7)
			pump(t, rs, func() bool { _, over := rs[1].pulled[7]; return over })
			if err := rs[1].pulled[7]; !errors.Is(err, errMalformed) {
				t.Errorf("the pull: %v, want %v", err, errMalformed)
			}
		})
	}
	rs := strangersOf(t)
	_, src := exported(t, rs[0], 1<<20)
	key := known(t, rs, 0, src)
	_, _, gen, number := keyParts(key)
	ask := cell{1: uint64(number) | uint64(gen)<<32, 3: uint64(len(src)), 4: 99}
	if err := rs[0].endpoint(1).help(&ask); !errors.Is(err, errMalformed) {
		t.Errorf("a request for help with a segment that is not there: %v, want %v", err, errMalformed)
	}
}

// TestSegmentsByAddress: memory is found in the segment that has it whole.
func TestSegmentsByAddress(t *testing.T) {
	mem := make([]byte, 100)
	var none areas
	if got := none.find(mem[10:20]); got != (spot{}) {
		t.Errorf("found %v before anything is exported", got)
	}
	second := areaOf(mem[30:40], 2)
	as := none.with(second).with(areaOf(mem[60:90], 3)).with(areaOf(mem[10:30], 1))
	for _, c := range []struct {
		from, to int
		want     spot
	}{
		{10, 30, spot{1, 0}}, {10, 31, spot{}}, {9, 12, spot{}}, {29, 30, spot{1, 19}}, {30, 40, spot{2, 0}}, {35, 41, spot{}},
		{0, 5, spot{}}, {45, 50, spot{}}, {60, 61, spot{3, 0}}, {89, 90, spot{3, 29}}, {85, 91, spot{}}, {90, 95, spot{}}, {0, 100, spot{}},
	} {
		if got := as.find(mem[c.from:c.to]); got != c.want {
			t.Errorf("bytes %d to %d: %v, want %v", c.from, c.to, got, c.want)
		}
	}
	rest := as.without(second)
	if got := rest.find(mem[30:40]); got != (spot{}) {
		t.Errorf("found %v, which was removed", got)
	}
	if got, want := rest.find(mem[60:90]), (spot{3, 0}); got != want {
		t.Errorf("found %v after another was removed, want %v", got, want)
	}
	if got, want := as.find(mem[30:40]), (spot{2, 0}); got != want {
		t.Errorf("found %v in the areas of before, want %v", got, want)
	}
}
