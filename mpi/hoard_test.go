package mpi

import (
	"runtime"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// hoarding is what rank 1 says over and over in a scene, without reading what rank 0 says, to have that keep more and
// more.
var hoarding = []struct {
	name    string
	nth     func(i int) transport.Header
	payload []byte
	kept    int    // so many are kept
	why     string // what the loss is blamed on
}{
	{"eager messages without credit", func(int) transport.Header {
		return transport.Header{Kind: kindEager, Tag: 3, Bytes: 99}
	}, make([]byte, 99), 1000 / (99 + transport.EnvelopeBytes), "more than its credit: it has sent 1170 bytes that nobody has received, and 1000 are allowed"},
	{"empty messages without credit, on a communicator that is not there", func(int) transport.Header {
		return transport.Header{Kind: kindEager, Context: 100, Tag: 3}
	}, nil, 1000 / transport.EnvelopeBytes, "more than its credit: it has sent 1056 bytes"},
	{"announcements", func(i int) transport.Header {
		return transport.Header{Kind: kindRTS, Tag: 3, Token: uint64(1000 + i), Bytes: 1 << 20}
	}, nil, sceneAnnounced, "it has 6 large messages waiting here to be received, and no more than 6 are kept"},
	{"announcements with a key", func(i int) transport.Header {
		return transport.Header{Kind: kindRTS, Tag: 3, Token: uint64(1000 + i), Bytes: 1 << 20}
	}, make([]byte, keyBytes), sceneAnnounced, "it has 6 large messages waiting here"},
	{"announcements on a communicator that is revoked", func(i int) transport.Header {
		if i == 0 {
			return transport.Header{Kind: kindRevoke, Context: 100}
		}
		return transport.Header{Kind: kindRTS, Context: 100, Tag: 3, Token: uint64(1000 + i), Bytes: 1 << 20}
	}, nil, 1 + sceneAnnounced, "it has 6 large messages waiting here"},
	{"announcements that it takes back", func(i int) transport.Header {
		if i%2 == 0 {
			return transport.Header{Kind: kindRTS, Tag: 3, Token: uint64(1000 + i), Bytes: 1 << 20}
		}
		return transport.Header{Kind: kindRetract, Token: uint64(999 + i)}
	}, nil, 2 * sceneAnnounced, "it has 6 large messages waiting here"},
	{"questions about communicators", func(i int) transport.Header {
		return transport.Header{Kind: kindShrink, Context: uint32(100 + i), Tag: 1, Aux: shrinkAsk}
	}, nil, sceneKept, "it has 4 questions about communicators waiting here, and no more than 4 are kept"},
	{"revocations", func(i int) transport.Header {
		return transport.Header{Kind: kindRevoke, Context: uint32(100 + 2*i)}
	}, nil, sceneKept, "it has 4 revocations waiting here"},
	{"agreements", func(i int) transport.Header {
		return transport.Header{Kind: kindShrink, Tag: int32(10 + i), Aux: shrinkQuery}
	}, nil, sceneKept, "it has 4 agreements waiting here"},
	{"questions about an agreement", func(int) transport.Header {
		return transport.Header{Kind: kindShrink, Tag: 1, Aux: shrinkAsk}
	}, nil, sceneKept, "it has 4 answers waiting here"},
	{"wishes for a lock", func(i int) transport.Header {
		return transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowLock, Accumulation(LockExclusive)), Token: uint64(1000 + i)}
	}, nil, 1 + sceneKept, "it has 4 wishes for a lock waiting here"}, // the first is granted
	{"questions about a window", func(i int) transport.Header {
		return transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowGet, 0), Token: uint64(1000 + i), Bytes: 80}
	}, nil, sceneKept, "it has 4 answers waiting here"},
	{"questions about a window that is not there", func(i int) transport.Header {
		return transport.Header{Kind: kindWindow, Context: 100, Tag: windowWord(windowFlush, 0), Token: uint64(1000 + i)}
	}, nil, sceneKept, "it has 4 answers waiting here"},
}

func TestHoarderIsLost(t *testing.T) {
	for _, u := range hoarding {
		t.Run(u.name, func(t *testing.T) {
			s := newScene(t)
			s.e.mu.Lock()
			defer s.e.mu.Unlock()
			s.s.full = true
			for i := range u.kept {
				s.say(u.nth(i), u.payload)
			}
			s.checkBounds(t)
			if err := s.e.peer(1).lost; err != nil {
				t.Fatalf("after %d it is lost: %v", u.kept, err)
			}
			s.say(u.nth(u.kept), u.payload)
			s.checkBounds(t)
			if err := s.e.peer(1).lost; err == nil || !strings.Contains(err.Error(), u.why) {
				t.Errorf("after one more it is lost: %v, want %q", err, u.why)
			}
		})
	}
}

// TestHoardedAgain: what is said twice is kept once, and what is received makes room.
func TestHoardedAgain(t *testing.T) {
	s := newScene(t)
	for i := range 4 * sceneKept {
		s.e.mu.Lock()
		s.say(transport.Header{Kind: kindShrink, Context: 100, Tag: 1, Aux: shrinkQuery}, nil)
		s.say(transport.Header{Kind: kindShrink, Tag: 2, Aux: shrinkQuery}, nil)
		s.say(transport.Header{Kind: kindRevoke, Context: 100}, nil)
		s.say(transport.Header{Kind: kindEager, Tag: 3, Bytes: 99}, make([]byte, 99))
		s.say(transport.Header{Kind: kindRTS, Tag: 3, Token: 1000, Bytes: 99}, nil)
		s.say(transport.Header{Kind: kindRetract, Token: 1000}, nil)
		s.checkBounds(t)
		s.e.mu.Unlock()
		if _, err := Recv(t.Context(), s.c, make([]byte, 99), 1, 3); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

// TestMissedWindowsAreForgotten: a peer that asks for ever more windows that are not there, and takes the answers, costs no more memory.
func TestMissedWindowsAreForgotten(t *testing.T) {
	s := newScene(t)
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for i := range 3 * sceneKept {
		s.say(transport.Header{Kind: kindWindow, Context: uint32(100 + i), Tag: windowWord(windowFlush, 0), Token: uint64(1000 + i)}, nil)
		if n := len(s.e.windows.missed); n > sceneKept {
			t.Fatalf("after %d windows %d are remembered, want no more than %d", i+1, n, sceneKept)
		}
	}
	if err := s.e.peer(1).lost; err != nil {
		t.Errorf("it is lost: %v", err)
	}
}

// TestGetIsReadWhenItLeaves: the answer to a Get that has to wait is no copy.
func TestGetIsReadWhenItLeaves(t *testing.T) {
	s := newScene(t)
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	w := s.e.windows.byID[sceneWindow].(*Window[int64])
	get := transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowGet, 0), Aux: 7, Bytes: 80}
	s.s.full, s.s.said = true, nil
	for i := range uint64(2) {
		get.Token = 1000 + i
		s.say(get, nil)
	}
	w.part[8] = 42
	s.checkBounds(t)
	var got []int64
	s.s.carry = func(_ *transport.Header, payload []byte) { got = append(got, elements[int64](payload)...) }
	s.s.full = false
	s.e.poll()
	s.heard(t, "there is room", "-> 1 answer 1000", "-> 1 answer 1001")
	if len(got) != 20 || got[1] != 42 || got[11] != 42 {
		t.Errorf("the answers are %v, want 20 elements, of which the second and twelfth are 42", got)
	}
	// The window has been freed meanwhile.
	s.s.full = true
	get.Token = 1002
	s.say(get, nil)
	delete(s.e.windows.byID, sceneWindow)
	s.s.full = false
	s.e.poll()
	s.heard(t, "the window is gone", "-> 1 failed 1002")
}

// A million messages of 1 MiB that nobody receives cost this rank little, and their sender is not lost.
func TestAnnouncementsAreSmall(t *testing.T) {
	s := newScene(t)
	s.e.mostAnnounced = mostAnnounced
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	const n, mostBytes = 1 << 20, 160
	key := make([]byte, keyBytes)
	h := transport.Header{Kind: kindRTS, Tag: 3, Bytes: 1 << 20}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range n {
		h.Token = uint64(1000 + i)
		s.e.Message(1, &h, key)
	}
	runtime.ReadMemStats(&after)
	p := s.e.peer(1)
	if each := (after.TotalAlloc - before.TotalAlloc) / n; each > mostBytes || p.announced != n || p.lost != nil {
		t.Errorf("%d B for each of %d announcements, want at most %d B for each of %d; lost: %v", each, p.announced, mostBytes, n, p.lost)
	}
	for i := range n {
		s.e.Message(1, &transport.Header{Kind: kindRetract, Token: uint64(1000 + i)}, nil)
	}
	if p.announced != 0 || s.e.match.first != nil || s.e.pool.spare > keepArrivals {
		t.Errorf("%d announcements and %d spare ones are left", p.announced, s.e.pool.spare)
	}
}
