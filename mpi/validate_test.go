package mpi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// utterance is what rank 1 says to rank 0.
type utterance struct {
	name    string
	h       transport.Header
	payload []byte
}

func ranksLost(ranks ...uint32) (b []byte) {
	for _, r := range ranks {
		b = binary.LittleEndian.AppendUint32(b, r)
	}
	return b
}

func windowWord(code windowCode, acc Accumulation) int32 { return int32(code) | int32(acc)<<8 }

// malformed is what no rank says.
var malformed = []utterance{
	{"an eager message longer than it is", transport.Header{Kind: kindEager, Bytes: 1 << 40}, make([]byte, 8)},
	{"an eager message shorter than it is", transport.Header{Kind: kindEager, Bytes: 1}, make([]byte, 8)},
	{"an eager message with any tag", transport.Header{Kind: kindEager, Tag: AnyTag}, nil},
	{"an announcement of too much", transport.Header{Kind: kindRTS, Token: 1, Bytes: 1 << 62}, nil},
	{"an announcement of a negative length", transport.Header{Kind: kindRTS, Tag: 1, Token: 1, Bytes: 1 << 63}, make([]byte, keyBytes)},
	{"an announcement by nobody", transport.Header{Kind: kindRTS, Bytes: 8}, nil},
	{"an announcement with half a key", transport.Header{Kind: kindRTS, Token: 1, Bytes: 8}, make([]byte, keyBytes/2)},
	{"a clearance for a negative length", transport.Header{Kind: kindCTS, Token: sceneSend, Bytes: 1 << 63}, nil},
	{"nobody's announcement taken back", transport.Header{Kind: kindRetract}, nil},
	{"a shadow revoked", transport.Header{Kind: kindRevoke, Context: 1}, nil},
	{"an agreement on more losses than ranks", transport.Header{Kind: kindShrink, Tag: 1, Aux: shrinkDecide}, ranksLost(0, 1, 2, 0)},
	{"an agreement on the loss of nobody", transport.Header{Kind: kindShrink, Tag: 1, Aux: shrinkAnswer}, ranksLost(3)},
	{"half a rank", transport.Header{Kind: kindShrink, Tag: 1, Aux: shrinkAnswer}, make([]byte, 2)},
	{"an agreement's fifth step", transport.Header{Kind: kindShrink, Tag: 1, Aux: shrinkQuery + 1}, nil},
	{"a window's twelfth operation", transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowFailed+1, 0)}, nil},
	{"an answer far behind the question", transport.Header{Kind: kindWindow, Tag: windowWord(windowAnswer, 0), Token: sceneQuestion, Aux: math.MaxInt64, Bytes: 8}, make([]byte, 8)},
	{"an answer before the question", transport.Header{Kind: kindWindow, Tag: windowWord(windowAnswer, 0), Token: sceneQuestion, Aux: 1 << 63, Bytes: 8}, make([]byte, 8)},
	{"a question for more than a message holds", transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowGet, 0), Bytes: 400}, nil},
	{"a put longer than it is", transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowPut, 0), Bytes: 1 << 40}, make([]byte, 8)},
}

// wellFormed is what ranks say, some of it about what is not there any more.
var wellFormed = []utterance{
	{"eager", transport.Header{Kind: kindEager, Tag: 1, Bytes: 8}, make([]byte, 8)},
	{"an empty announcement", transport.Header{Kind: kindRTS, Tag: 1, Token: 1}, nil},
	{"an announcement with a key", transport.Header{Kind: kindRTS, Tag: 1, Token: 1, Bytes: 4000}, make([]byte, keyBytes)},
	{"a clearance", transport.Header{Kind: kindCTS, Token: sceneSend, Aux: 9, Bytes: 150}, nil},
	{"a clearance for more than was offered", transport.Header{Kind: kindCTS, Token: sceneSend, Aux: 9, Bytes: maxMessageBytes}, nil},
	{"an end", transport.Header{Kind: kindFIN, Token: sceneExposed}, nil},
	{"credit", transport.Header{Kind: kindCredit, Aux: math.MaxUint64}, nil},
	{"a wish to take back", transport.Header{Kind: kindRetract, Token: 500}, nil},
	{"its fulfilment", transport.Header{Kind: kindRetracted, Token: sceneSend}, nil},
	{"a revocation", transport.Header{Kind: kindRevoke}, nil},
	{"an agreement", transport.Header{Kind: kindShrink, Tag: 1, Aux: shrinkDecide}, ranksLost(2)},
	{"a put", transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowPut, 0), Bytes: 8}, make([]byte, 8)},
	{"a put beyond the part", transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowPut, 0), Aux: 100, Bytes: 8}, make([]byte, 8)},
	{"an odd sum", transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowAccumulate, AccSum), Aux: 99, Bytes: 12}, make([]byte, 12)},
	{"a get", transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowGet, 0), Token: 1, Bytes: 80}, nil},
	{"a lock", transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowLock, Accumulation(LockExclusive)), Token: 1}, nil},
	{"a lock of a stranger", transport.Header{Kind: kindWindow, Context: sceneStrangers, Tag: windowWord(windowLock, 0), Token: 1}, nil},
	{"an answer", transport.Header{Kind: kindWindow, Tag: windowWord(windowAnswer, 0), Token: sceneQuestion, Aux: 56, Bytes: 8}, make([]byte, 8)},
	{"a part of an answer too many", transport.Header{Kind: kindWindow, Tag: windowWord(windowAnswer, 0), Token: sceneQuestion, Aux: 60, Bytes: 8}, make([]byte, 8)},
}

// In a scene rank 0 of three has operations of every kind under way with rank 1. Tokens below
// sceneTokens stand for those of its operations.
const (
	sceneSend      = 1 + iota // announced
	sceneExposed              // announced, and may be pulled
	sceneReceive              // cleared
	scenePull                 // being pulled
	scenePosted               // a receive of tag 1
	sceneQuestion             // for 64 bytes of a window
	sceneTokens               // end
	sceneWindow    = 40       // of 100 elements
	sceneStrangers = 42       // one that rank 1 is no member of
	sceneKept      = 4        // things of a kind that rank 0 keeps for rank 1
	sceneAnnounced = 6        // announcements, likewise
)

type scene struct {
	*play
	ops       [sceneTokens]*op
	question  uint64
	agreement *agreement
}

func newScene(t *testing.T) *scene {
	s := &scene{play: newPlay(0, []string{"3", "pull"})}
	e := s.e
	e.mostKept, e.mostAnnounced = sceneKept, sceneAnnounced
	t.Cleanup(e.set.close)
	window := func(id uint32, c *Comm) {
		w := &Window[int64]{c: c, e: e, id: id, part: make([]int64, 100), combine: combiners[int64]()}
		w.locks.holder = -1
		e.addWindow(id, w)
	}
	window(sceneWindow, s.c)
	window(sceneStrangers, newComm(s.c.world, e, "strangers", 0, []int32{0, 2}, 100))
	e.mu.Lock()
	defer e.mu.Unlock()
	s.ops[sceneSend] = e.startSend(s.c, make([]byte, 150), 1, 1)
	s.ops[sceneExposed] = e.startSend(s.c, make([]byte, 5000), 1, 1)
	s.ops[sceneReceive] = e.startRecv(s.c, make([]byte, 300), 1, 7)
	s.ops[scenePull] = e.startRecv(s.c, make([]byte, 300), 1, 8)
	e.Message(1, &transport.Header{Kind: kindRTS, Tag: 7, Token: 500, Bytes: 300}, nil)
	e.Message(1, &transport.Header{Kind: kindRTS, Tag: 8, Token: 501, Bytes: 300}, make([]byte, keyBytes))
	s.ops[scenePosted] = e.startRecv(s.c, make([]byte, 100), AnySource, 1)
	s.question, _ = e.newQuestion(1, make([]byte, 64))
	id := shrinkID{comm: s.c, n: 1}
	s.agreement = &agreement{e: e, id: id, s: e.shrinkState(id, e.rank)}
	s.agreement.met()
	return s
}

// say has rank 1 say something. Callers hold the lock.
func (s *scene) say(h transport.Header, payload []byte) {
	switch {
	case h.Token == sceneQuestion:
		h.Token = s.question
	case h.Token > 0 && h.Token < sceneTokens:
		h.Token = s.ops[h.Token].token()
	}
	s.e.Message(1, &h, payload)
	s.e.poll()
}

// check holds what must be so whatever has been said. Callers hold the lock.
func (s *scene) check(t *testing.T) {
	t.Helper()
	e := s.e
	s.checkBounds(t)
	s.s.full = false
	e.poll()
	if p := e.peer(1); p.lost == nil && !p.out.empty() {
		t.Errorf("an answer of %d bytes never leaves", len(p.out.front().more))
	}
	for a := e.match.first; a != nil; a = a.seqNext {
		if a.bytes < 0 || a.bytes > maxMessageBytes || a.token == 0 && a.bytes != len(a.payload) {
			t.Errorf("a message of %d bytes, of which there are %d, is held", a.bytes, len(a.payload))
		}
	}
	for _, o := range s.ops[1:] {
		if o != nil && (o.bytes < 0 || o.bytes > maxMessageBytes) {
			t.Errorf("an operation's status has %d bytes", o.bytes)
		}
	}
	if s.agreement.met(); len(s.agreement.s.lost) > s.c.Size() {
		t.Errorf("%d of %d ranks are lost", len(s.agreement.s.lost), s.c.Size())
	}
}

// checkBounds holds how much rank 1 may have rank 0 keep.
func (s *scene) checkBounds(t *testing.T) {
	t.Helper()
	e, p := s.e, s.e.peer(1)
	held, announced := 0, 0
	for a := e.match.first; a != nil; a = a.seqNext {
		switch {
		case a.eager():
			held += a.bytes + transport.EnvelopeBytes
		case int(a.env.source) == 1:
			announced++
		}
	}
	if announced != p.announced || announced > sceneAnnounced {
		t.Errorf("%d announcements are held, %d are counted, at most %d may be", announced, p.announced, sceneAnnounced)
	}
	if held > p.caps.CreditBytes {
		t.Errorf("eager messages of %d bytes are held, with a credit of %d", held, p.caps.CreditBytes)
	}
	for id, a := range e.shrinks {
		if len(a.waiting) > s.c.Size() {
			t.Errorf("%d of %d ranks wait for the outcome of agreement %d", len(a.waiting), s.c.Size(), id.n)
		}
	}
	wishes, copied, refused := 0, 0, 0
	for _, w := range e.windows.byID {
		wishes = max(wishes, len(w.(*Window[int64]).locks.queue))
	}
	for _, x := range p.out.q[p.out.head:] {
		copied += len(x.more)
		if x.h.Kind == kindRetracted {
			refused++
		}
	}
	for what, n := range map[string]int{"questions": len(e.early), "revocations": len(e.revokedEarly), "agreements": len(e.shrinks) - 1,
		"wishes for a lock": wishes, "answers": p.out.answers - refused} {
		if n > sceneKept {
			t.Errorf("%d %s are kept, at most %d may be", n, what, sceneKept)
		}
	}
	if refused > sceneAnnounced {
		t.Errorf("%d refusals wait, at most %d may", refused, sceneAnnounced)
	}
	if most := 16 * len(p.out.q[p.out.head:]); copied > most {
		t.Errorf("answers that wait hold copies of %d bytes", copied)
	}
}

// sceneAfter is a scene, locked, in which rank 1 has sent a message.
func sceneAfter(t *testing.T, h transport.Header, payload []byte) *scene {
	t.Helper()
	s := newScene(t)
	s.e.mu.Lock()
	s.say(h, payload)
	s.check(t)
	return s
}

func TestMalformedMessageLosesItsSender(t *testing.T) {
	for _, u := range malformed {
		t.Run(u.name, func(t *testing.T) {
			s := sceneAfter(t, u.h, u.payload)
			defer s.e.mu.Unlock()
			if err := s.e.peer(1).lost; !errors.Is(err, ErrPeerLost) {
				t.Errorf("rank 1 is lost: %v", err)
			}
			if o := s.ops[scenePosted]; !o.finished() || !errors.Is(o.err, ErrPeerLost) {
				t.Errorf("a receive from any rank ends with %v", o.err)
			}
			if len(s.e.losses) != 1 {
				t.Errorf("%d ranks are lost", len(s.e.losses))
			}
		})
	}
	for _, u := range wellFormed {
		t.Run(u.name, func(t *testing.T) {
			s := sceneAfter(t, u.h, u.payload)
			defer s.e.mu.Unlock()
			if err := s.e.peer(1).lost; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMalformedMessageIsNamed has one go over a fabric: whoever waits for its sender learns why that is lost.
func TestMalformedMessageIsNamed(t *testing.T) {
	runLocal(t, 2, LocalOptions{}, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 1 {
			e := c.dev.(*engine)
			e.mu.Lock()
			e.control(e.peer(0), transport.Header{Kind: kindCTS, Bytes: 1 << 63})
			e.mu.Unlock()
			return nil
		}
		_, err := Recv(ctx, c, make([]byte, 8), 1, 0)
		const want = "from rank 1 (sim) tag 0 on world: peer lost: malformed message: 9223372036854775808 bytes asked for"
		if !errors.Is(err, ErrPeerLost) || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%w, want %q", err, want)
		}
		return nil
	})
}

// FuzzMessage has rank 1 say anything, one thing after the other: it is lost at the worst.
func FuzzMessage(f *testing.F) {
	const headBytes = 1 + 4 + 4 + 8 + 8 + 8 + 1
	pack := func(b []byte, u utterance) []byte {
		le := binary.LittleEndian
		b = append(b, byte(u.h.Kind))
		b = le.AppendUint32(b, u.h.Context)
		b = le.AppendUint32(b, uint32(u.h.Tag))
		b = le.AppendUint64(b, u.h.Bytes)
		b = le.AppendUint64(b, u.h.Token)
		b = le.AppendUint64(b, u.h.Aux)
		return append(append(b, byte(len(u.payload))), u.payload...)
	}
	var all []byte
	for _, u := range wellFormed {
		f.Add(pack(nil, u))
		all = pack(all, u)
	}
	f.Add(all)
	deaf := utterance{"it does not read", transport.Header{}, nil}
	f.Add(pack(pack(nil, deaf), utterance{"", transport.Header{Kind: kindWindow, Context: sceneWindow, Tag: windowWord(windowGet, 0), Token: 1, Bytes: 80}, nil}))
	for _, u := range hoarding {
		one := pack(nil, deaf)
		for i := range 4 * sceneKept {
			one = pack(one, utterance{u.name, u.nth(i), u.payload})
		}
		f.Add(one)
	}
	for _, u := range malformed {
		f.Add(pack(nil, u))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newScene(t)
		s.e.mu.Lock()
		defer s.e.mu.Unlock()
		for len(b) >= headBytes && s.e.peer(1).lost == nil {
			le := binary.LittleEndian
			h := transport.Header{Kind: transport.Kind(b[0]), Context: le.Uint32(b[1:]), Tag: int32(le.Uint32(b[5:])),
				Bytes: le.Uint64(b[9:]), Token: le.Uint64(b[17:]), Aux: le.Uint64(b[25:])}
			n := min(int(b[33]), len(b)-headBytes)
			if h.Kind == 0 { // it stops to read, or goes on
				s.s.full = !s.s.full
			}
			s.say(h, b[headBytes:headBytes+n])
			b = b[headBytes+n:]
		}
		s.check(t)
		s.e.lose(1, "the test is over")
		s.check(t)
	})
}

func TestRecvAllocOfMoreThanMemory(t *testing.T) {
	p := newPlay(0, []string{"2"})
	t.Cleanup(p.e.set.close)
	p.e.mu.Lock()
	p.e.Message(1, &transport.Header{Kind: kindRTS, Tag: 3, Token: 500, Bytes: maxMessageBytes}, nil)
	p.e.mu.Unlock()
	buf, status, err := RecvAlloc[int64](context.Background(), p.c, 1, AnyTag)
	if buf != nil || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("%d elements, %v", len(buf), err)
	}
	if want := (Status{Source: 1, Tag: 3, Bytes: maxMessageBytes}); status != want {
		t.Errorf("status %+v, want %+v", status, want)
	}
}
