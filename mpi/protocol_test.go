package mpi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// script is a provider that writes down what it is asked and does only what
// the transcript says.
type script struct {
	caps transport.Caps
	full bool
	gone error // why it takes nothing any more, for a loss of rank 1 that Poll has yet to report
	read bool  // peers are reading what is exposed to them
	said []string
	name func(token uint64) string
	poll func(s transport.Sink) int // what arrives; nil: nothing
	// carry is shown what is sent; may be nil.
	carry func(h *transport.Header, payload []byte)
}

func (s *script) say(format string, a ...any) { s.said = append(s.said, fmt.Sprintf(format, a...)) }

func (s *script) Name() string              { return "script" }
func (s *script) Caps() transport.Caps      { return s.caps }
func (s *script) Address() []byte           { return nil }
func (s *script) Connect(int, []byte) error { return nil }
func (s *script) Arm() bool                 { return true }
func (s *script) Disarm()                   {}
func (s *script) Close() error              { return nil }
func (s *script) Abandon(op uint64)         { s.say("abandon %s", s.name(op)) }
func (s *script) Detach(peer int)           { s.say("detach %d", peer) }

func (s *script) Poll(sink transport.Sink) int {
	if s.gone != nil {
		sink.Lost(1, s.gone)
	}
	if s.poll == nil {
		return 0
	}
	return s.poll(sink)
}

func (s *script) Send(peer int, h *transport.Header, payload []byte) transport.Outcome {
	if s.gone != nil {
		return transport.Gone
	}
	if s.full || len(payload) > s.caps.EagerBytes {
		return transport.Full
	}
	if s.carry != nil {
		s.carry(h, payload)
	}
	switch h.Kind {
	case kindEager:
		s.say("-> %d eager tag %d, %d B", peer, h.Tag, h.Bytes)
	case kindRTS:
		key := ""
		if len(payload) > 0 {
			key = " with key"
		}
		s.say("-> %d RTS %s tag %d, %d B%s", peer, s.name(h.Token), h.Tag, h.Bytes, key)
	case kindCTS:
		s.say("-> %d CTS for %d to %s, %d B", peer, h.Token, s.name(h.Aux), h.Bytes)
	case kindFIN:
		s.say("-> %d FIN for %d", peer, h.Token)
	case kindCredit:
		s.say("-> %d credit %d", peer, h.Aux)
	case kindRetract:
		receiver := ""
		if h.Aux != 0 {
			receiver = fmt.Sprintf(" to %d", h.Aux)
		}
		s.say("-> %d retract %s%s", peer, s.name(h.Token), receiver)
	case kindRetracted:
		s.say("-> %d retracted %d%s", peer, h.Token, map[uint64]string{retractedFreed: " freed"}[h.Aux])
	case kindRevoke:
		s.say("-> %d revoke", peer)
	case kindShrink:
		s.say("-> %d shrink %d, %d lost", peer, h.Aux, len(payload)/4)
	case kindWindow:
		v := windowHeaderOf(h)
		s.say("-> %d %s %d", peer, windowWords[v.code], v.token)
	}
	return transport.Sent
}

func (s *script) SendFrom(peer int, h *transport.Header, payload []byte, op uint64) transport.Outcome {
	if s.gone != nil {
		return transport.Gone
	}
	if s.full {
		return transport.Full
	}
	s.say("-> %d data of %s for %d, %d B", peer, s.name(op), h.Token, len(payload))
	return transport.Sent
}

var windowWords = map[windowCode]string{windowPut: "put", windowFlush: "flush", windowLock: "lock", windowUnlock: "unlock", windowCancel: "cancel", windowAnswer: "answer", windowFailed: "failed"}

// pullScript can also pull.
type pullScript struct{ *script }

func (s pullScript) Expose(peer int, buf []byte) (transport.Key, bool) {
	s.say("expose %d B to %d", len(buf), peer)
	return transport.Key{1}, true
}

func (s pullScript) Pull(peer int, _ transport.Key, dst []byte, op uint64) transport.Outcome {
	if s.gone != nil {
		return transport.Gone
	}
	if s.full {
		return transport.Full
	}
	s.say("pull %d B from %d into %s", len(dst), peer, s.name(op))
	return transport.Sent
}

func (s pullScript) Withdraw(peer int, _ transport.Key) bool {
	s.say("withdraw from %d", peer)
	return !s.read
}

// TestProtocolTranscripts replays testdata/protocol.txt. Commands:
//
//	world SIZE [pull]               an engine as rank 0; eager below 100 B, credit 1000 B
//	send NAME PEER TAG BYTES        an Isend of rank 0
//	recv NAME PEER TAG BYTES        an Irecv; PEER and TAG may be *
//	eager PEER TAG BYTES            a message arrives
//	claim PEER TAG BYTES            the header of a message is here; its payload begins to arrive
//	place PEER                      more of the payload that was claimed arrives
//	whole PEER                      it has arrived
//	rts PEER TOKEN TAG BYTES [key]
//	cts PEER NAME TOKEN BYTES
//	fin PEER NAME
//	credit PEER BYTES
//	retract PEER TOKEN [NAME]       NAME has cleared it
//	retracted PEER NAME [freed]
//	placed PEER NAME                the payload of a Data message is in
//	complete NAME [gone|abandoned]  the provider is done with the memory of NAME; the peer has died
//	full | room                     the provider takes nothing, or again; room also polls
//	read                            from now on peers are reading what is exposed to them
//	cancel NAME                     Request.Cancel
//	giveup NAME                     the context of the wait for it ends
//	lose PEER
//	revoke
//
// Lines after ">" are what the engine must do, in order; "-" is nothing.
func TestProtocolTranscripts(t *testing.T) {
	f, err := os.Open("testdata/protocol.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var (
		p      *play
		got    []string
		number int
	)
	for s := bufio.NewScanner(f); s.Scan(); {
		number++
		text := s.Text()
		switch {
		case text == "" || text[0] == '#':
		case strings.HasPrefix(text, "> "):
			want := text[2:]
			if want == "-" && len(got) == 0 {
				break
			}
			if len(got) == 0 || got[0] != want {
				t.Errorf("line %d: want %q, the engine did %q", number, want, got)
				got = nil
				break
			}
			got = got[1:]
		default:
			if len(got) > 0 {
				t.Errorf("line %d: the engine also did %q", number, got)
			}
			w := strings.Fields(text)
			if w[0] == "world" {
				p = newPlay(0, w[1:])
				got = nil
				break
			}
			got = p.do(t, number, w)
		}
	}
	if len(got) > 0 {
		t.Errorf("at the end the engine also did %q", got)
	}
	if number == 0 {
		t.Fatal("empty transcript")
	}
}

// play is one engine under a script.
type play struct {
	e        *engine
	s        *script
	c        *Comm
	requests map[string]Request
	order    []string
	claimed  transport.Header
}

func newPlay(rank int, w []string) *play {
	size, _ := strconv.Atoi(w[0])
	p := &play{s: &script{}, requests: map[string]Request{}}
	p.s.caps = transport.Caps{EagerBytes: 100, RendezvousBytes: 100, PullBytes: 200, CreditBytes: 1000}
	p.s.name = func(token uint64) string {
		for _, n := range p.order {
			if r := p.requests[n]; uint64(r.gen)<<32|uint64(r.o.index) == token { // also when it is over
				return n
			}
		}
		return "new"
	}
	e := newEngine(rank, size, slog.New(slog.DiscardHandler))
	e.use(p.s)
	if len(w) > 1 {
		e.use(pullScript{p.s})
	}
	set, err := newSleepSet()
	if err != nil {
		panic(err)
	}
	e.set = set
	e.members = make([]Member, size)
	for i := range e.members {
		e.members[i].Addresses = map[string][]byte{"script": nil}
	}
	p.e = e
	world := newWorld(Assembly{Rank: rank, Members: e.members}, e)
	world.adopt(e)
	p.c = world.comm
	return p
}

func (p *play) do(t *testing.T, line int, w []string) []string {
	t.Helper()
	p.s.said = nil
	num := func(i int) int {
		if w[i] == "*" {
			return -1
		}
		n, err := strconv.Atoi(w[i])
		if err != nil {
			t.Fatalf("line %d: %v", line, err)
		}
		return n
	}
	arrive := func(kind transport.Kind, h transport.Header, payload []byte) {
		h.Kind = kind
		p.e.Message(num(1), &h, payload)
	}
	token := func(i int) uint64 { return p.requests[w[i]].o.token() }
	p.e.mu.Lock()
	switch w[0] {
	case "send", "recv":
		buf := make([]byte, num(4))
		var o *op
		if w[0] == "send" {
			o = p.e.startSend(p.c, buf, num(2), num(3))
		} else {
			o = p.e.startRecv(p.c, buf, num(2), num(3))
		}
		p.requests[w[1]] = Request{o: o, gen: o.gen}
		p.order = append(p.order, w[1])
		for i, s := range p.s.said { // it had no name yet
			p.s.said[i] = strings.ReplaceAll(s, "new", w[1])
		}
	case "eager":
		arrive(kindEager, transport.Header{Tag: int32(num(2)), Bytes: uint64(num(3))}, make([]byte, num(3)))
	case "claim":
		p.claimed = transport.Header{Kind: kindEager, Tag: int32(num(2)), Bytes: uint64(num(3))}
		p.s.say("claimed: %v", p.e.Claim(num(1), &p.claimed, num(3)))
	case "place":
		p.s.say("place %d B", len(p.e.Place(num(1), &p.claimed, 10, int(p.claimed.Bytes))))
	case "whole":
		p.e.Placed(num(1), &p.claimed)
	case "rts":
		var key []byte
		if len(w) > 5 {
			key = make([]byte, 24)
		}
		arrive(kindRTS, transport.Header{Token: uint64(num(2)), Tag: int32(num(3)), Bytes: uint64(num(4))}, key)
	case "cts":
		arrive(kindCTS, transport.Header{Token: token(2), Aux: uint64(num(3)), Bytes: uint64(num(4))}, nil)
	case "fin":
		arrive(kindFIN, transport.Header{Token: token(2)}, nil)
	case "credit":
		arrive(kindCredit, transport.Header{Aux: uint64(num(2))}, nil)
	case "retract":
		h := transport.Header{Token: uint64(num(2))}
		if len(w) > 3 {
			h.Aux = token(3)
		}
		arrive(kindRetract, h, nil)
	case "retracted":
		h := transport.Header{Token: token(2)}
		if len(w) > 3 {
			h.Aux = retractedFreed
		}
		arrive(kindRetracted, h, nil)
	case "placed":
		h := transport.Header{Kind: kindData, Token: token(2)}
		p.s.say("place %d B", len(p.e.Place(num(1), &h, 0, 1<<20)))
		p.e.Placed(num(1), &h)
	case "complete":
		var err error
		if len(w) > 2 {
			err = map[string]error{"gone": fmt.Errorf("in mid-pull: %w", transport.ErrGone), "abandoned": errors.New("abandoned")}[w[2]]
		}
		p.e.Complete(token(1), err)
	case "full":
		p.s.full = true
	case "room":
		p.s.full = false
		p.e.poll()
	case "read":
		p.s.read = true
	case "cancel":
		p.e.callBack(p.requests[w[1]].o)
	case "giveup":
		p.e.abort(p.requests[w[1]].o, context.DeadlineExceeded)
	case "farewell":
		p.e.closing = true
	case "lose":
		p.e.lose(num(1), "it was killed")
	case "revoke":
		p.e.revokeComm(p.c)
	default:
		t.Fatalf("line %d: unknown command %q", line, w[0])
	}
	p.e.mu.Unlock()
	for _, n := range p.order {
		r := p.requests[n]
		if r.o == nil || !r.o.finished() || r.o.gen != r.gen {
			continue
		}
		kind := r.o.kind
		status, _, err := r.Test()
		text := n + " done"
		switch {
		case errors.Is(err, ErrPeerLost):
			var at *Error
			errors.As(err, &at)
			text = fmt.Sprintf("%s: rank %d lost", n, at.Peer)
		case err != nil:
			var at *Error
			errors.As(err, &at)
			text = fmt.Sprintf("%s: %v", n, at.Err)
		case kind == opRecv:
			text = fmt.Sprintf("%s has %d B from %d tag %d", n, status.Bytes, status.Source, status.Tag)
		}
		p.s.say("%s", text)
	}
	return p.s.said
}

// TestProbeOfAClosedWorld: a message that waits there is as little to be found as received.
func TestProbeOfAClosedWorld(t *testing.T) {
	p := newPlay(0, []string{"2"})
	p.do(t, 0, []string{"eager", "1", "3", "20"})
	if _, found, err := p.c.Iprobe(1, 3); !found || err != nil {
		t.Fatalf("found %v, %v before", found, err)
	}
	p.e.mu.Lock()
	p.e.closed = true
	p.e.mu.Unlock()
	if _, found, err := p.c.Iprobe(1, 3); found || !errors.Is(err, ErrClosed) {
		t.Errorf("iprobe: found %v, %v; want %v", found, err, ErrClosed)
	}
	if _, _, err := RecvAlloc[byte](t.Context(), p.c, 1, 3); !errors.Is(err, ErrClosed) {
		t.Errorf("receive of any length: %v, want %v", err, ErrClosed)
	}
}
