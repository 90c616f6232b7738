package transporttest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// SoakVariable names the environment variable that says how long Soak runs.
const SoakVariable = "FISTERRA_SOAK"

// Soak mixes all calls at random and checks every byte, and that nothing is lost or comes twice, for the duration in
// FISTERRA_SOAK or else for two seconds. Each round is a new world with a printed
// seed.
func Soak(t *testing.T, factory Factory) {
	duration := 2 * time.Second
	if v := os.Getenv(SoakVariable); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("%s=%q is not a duration such as 10m: %v", SoakVariable, v, err)
		}
		duration = d
	}
	seed := rand.Uint64()
	for end := time.Now().Add(duration); time.Now().Before(end); seed++ {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			soak(open(t, factory, 2+int(seed%4)), seed, 400)
		})
		if !ok {
			return
		}
	}
}

func shortSoak(t *testing.T, factory Factory) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	soak(open(t, factory, 4), seed, 400)
}

// kindEnd marks the end of what a rank sends to a peer by itself, and says how many messages that were. Only answers come later.
const kindEnd transport.Kind = 43

// soak has every rank send count messages to every other, in all ways, in
// sizes from the whole range. A second goroutine of each rank sends too, so that
// calls come while long copies run outside the lock.
func soak(w *world, seed uint64, count int) {
	w.t.Helper()
	w.each(func(m *member) error {
		s := newSoaker(m, seed)
		s.memory, _ = m.Provider.(transport.Memory)
		m.onMessage = s.message
		return s.run(count)
	})
}

type soaker struct {
	m      *member
	seed   uint64
	memory transport.Memory
	ops    uint64
	sent   []int // messages, by receiver
	came   []int // messages and begun Data, by sender
	ended  map[int]bool
	pulls  map[uint64]*pulled
	lent   map[uint64]exposed // by token
	queue  []received         // keys to be pulled, acknowledgements to be sent
}

func newSoaker(m *member, seed uint64) *soaker {
	return &soaker{m: m, seed: seed, sent: make([]int, m.size), came: make([]int, m.size), ended: make(map[int]bool),
		pulls: make(map[uint64]*pulled), lent: make(map[uint64]exposed)}
}

// pulled is a Pull under way.
type pulled struct {
	peer  int
	dst   []byte
	want  []byte
	token uint64
}

type exposed struct {
	peer int
	key  transport.Key
	buf  []byte
}

// size draws a length: mostly small, sometimes up to 300 KiB.
func (s *soaker) size(r *rand.Rand) int {
	eager := s.m.Provider.Caps().EagerBytes
	switch r.IntN(10) {
	case 0:
		return r.IntN(eager + 1)
	case 1:
		return r.IntN(300 << 10)
	case 2:
		return 0
	default:
		return r.IntN(600)
	}
}

func (s *soaker) run(count int) error {
	m := s.m
	r := rand.New(rand.NewPCG(s.seed, uint64(m.rank)))
	sink := &soakSink{member: m, begun: s.arrival}
	m.after = sink
	var second sync.WaitGroup
	var secondErr error
	second.Go(func() { secondErr = s.meddle(count / 4) })
	for range count {
		peer := r.IntN(m.size - 1)
		if peer >= m.rank {
			peer++
		}
		n := s.size(r)
		if err := s.one(sink, r, peer, n); err != nil {
			return err
		}
		if r.IntN(3) == 0 {
			m.Provider.Poll(sink)
		}
		if err := s.answer(sink); err != nil {
			return err
		}
	}
	m.Lock.Unlock()
	second.Wait()
	m.Lock.Lock()
	if secondErr != nil {
		return secondErr
	}
	for peer := range m.size {
		if peer == m.rank {
			continue
		}
		if err := s.offer(sink, "room for the end", func() transport.Outcome {
			return m.Provider.Send(peer, &transport.Header{Kind: kindEnd, Aux: uint64(s.sent[peer])}, nil)
		}); err != nil {
			return err
		}
	}
	return s.wait(sink, "everything to arrive and complete", func() bool {
		return len(s.ended) == m.size-1 && len(s.pulls) == 0 && len(s.lent) == 0 && len(s.queue) == 0 && sink.open == 0 && len(sink.filling) == 0
	})
}

// one sends one message in one of the ways.
func (s *soaker) one(sink *soakSink, r *rand.Rand, peer, n int) error {
	m := s.m
	token := r.Uint64() >> 1
	h := transport.Header{Kind: kindNote, Token: token, Aux: uint64(n)}
	want := pattern(token, n)
	s.sent[peer]++
	switch {
	case s.memory != nil && n > 0 && r.IntN(4) == 0:
		buf := bytes.Clone(want)
		key, ok := s.memory.Expose(peer, buf)
		if !ok {
			return fmt.Errorf("%d B could not be exposed", n)
		}
		s.lent[token] = exposed{peer, key, buf}
		h.Kind = kindKey
		return s.offer(sink, "room for a key", func() transport.Outcome { return m.Provider.Send(peer, &h, key[:]) })
	case n > m.Provider.Caps().EagerBytes || r.IntN(3) == 0:
		h.Kind = transport.Data
		s.ops++
		op := s.ops<<8 | uint64(m.rank)
		buf := bytes.Clone(want)
		err := s.offer(sink, "room for data", func() transport.Outcome { return m.Provider.SendFrom(peer, &h, buf, op) })
		sink.started(op, buf)
		return err
	default:
		buf := bytes.Clone(want)
		err := s.offer(sink, "room for a message", func() transport.Outcome { return m.Provider.Send(peer, &h, buf) })
		clear(buf)
		return err
	}
}

// meddle sends small messages from another goroutine of the same rank.
func (s *soaker) meddle(count int) error {
	m := s.m
	r := rand.New(rand.NewPCG(s.seed, uint64(m.rank)|1<<32))
	for range count {
		m.Lock.Lock()
		peer := (m.rank + 1) % m.size
		n := r.IntN(200)
		token := r.Uint64() >> 1
		h := transport.Header{Kind: kindNote, Token: token, Aux: uint64(n)}
		out := m.Provider.Send(peer, &h, pattern(token, n))
		if out == transport.Sent {
			s.sent[peer]++
		}
		m.Lock.Unlock()
		if out == transport.Gone {
			return fmt.Errorf("second goroutine: rank %d is gone", peer)
		}
	}
	return nil
}

// message takes what arrives in the sink's Message.
func (s *soaker) message(peer int, h *transport.Header, payload []byte) {
	if h.Kind == kindNote || h.Kind == kindKey {
		s.arrival(peer)
	}
	switch h.Kind {
	case kindNote:
		if want := pattern(h.Token, int(h.Aux)); !bytes.Equal(payload, want) {
			s.m.breach("message of %d B from rank %d: %s", h.Aux, peer, difference(payload, want))
		}
	case kindKey, kindPulled:
		s.queue = append(s.queue, received{peer, *h, bytes.Clone(payload)})
	case kindEnd:
		if s.ended[peer] || uint64(s.came[peer]) != h.Aux {
			s.m.breach("rank %d has sent %d messages, and %d came before the end of them, an earlier end: %v", peer, h.Aux, s.came[peer], s.ended[peer])
		}
		s.ended[peer] = true
	default:
		s.m.breach("message of kind %d from rank %d", h.Kind, peer)
	}
}

// arrival counts a message, or a Data payload whose first byte is about to come: both keep their place in the order.
func (s *soaker) arrival(peer int) {
	s.came[peer]++
	if s.ended[peer] {
		s.m.breach("rank %d has sent %d messages, and another came after the end of them", peer, s.came[peer]-1)
	}
}

// answer pulls what was announced and withdraws what was pulled.
func (s *soaker) answer(sink *soakSink) error {
	m := s.m
	for len(s.queue) > 0 {
		q := s.queue[0]
		s.queue = s.queue[1:]
		if q.header.Kind == kindPulled {
			x := s.lent[q.header.Token]
			if !s.memory.Withdraw(x.peer, x.key) {
				s.queue = append(s.queue, q)
				m.Provider.Poll(sink)
				continue
			}
			clear(x.buf)
			delete(s.lent, q.header.Token)
			continue
		}
		n := int(q.header.Aux)
		s.ops++
		op := s.ops<<8 | 1<<63 | uint64(m.rank)
		x := &pulled{peer: q.peer, dst: make([]byte, n), want: pattern(q.header.Token, n), token: q.header.Token}
		if err := s.offer(sink, "room to pull", func() transport.Outcome {
			return s.memory.Pull(q.peer, transport.Key(q.payload), x.dst, op)
		}); err != nil {
			return err
		}
		s.pulls[op] = x
	}
	for op, x := range s.pulls {
		err, done := m.completed[op]
		if !done {
			continue
		}
		delete(m.completed, op)
		delete(s.pulls, op)
		if err != nil {
			return fmt.Errorf("pull of %d B from rank %d: %w", len(x.dst), x.peer, err)
		}
		if !bytes.Equal(x.dst, x.want) {
			return fmt.Errorf("pull from rank %d: %s", x.peer, difference(x.dst, x.want))
		}
		if err := s.offer(sink, "room to say pulled", func() transport.Outcome {
			return m.Provider.Send(x.peer, &transport.Header{Kind: kindPulled, Token: x.token}, nil)
		}); err != nil {
			return err
		}
	}
	return nil
}

// offer and wait are member's, with the soak's sink.
func (s *soaker) offer(sink *soakSink, what string, try func() transport.Outcome) error {
	out := transport.Full
	err := s.m.waitOn(sink, what, func() bool {
		if out == transport.Full {
			out = try()
		}
		return out != transport.Full
	})
	if err == nil && out == transport.Gone {
		err = fmt.Errorf("waiting for %s: the peer is gone", what)
	}
	return err
}

func (s *soaker) wait(sink *soakSink, what string, cond func() bool) error {
	for {
		var failed error
		err := s.m.waitOn(sink, what, func() bool { return len(s.queue) > 0 || s.pullDone() || cond() })
		if err == nil {
			failed = s.answer(sink)
		}
		if err != nil || failed != nil || cond() {
			return firstError(err, failed)
		}
	}
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (s *soaker) pullDone() bool {
	for op := range s.pulls {
		if s.m.has(op) {
			return true
		}
	}
	return false
}

// soakSink places Data anywhere and checks it whole: the header says what the
// bytes have to be.
type soakSink struct {
	*member
	begun   func(peer int)    // told of a payload when it begins
	open    int               // sends whose memory is lent
	bufs    map[uint64][]byte // lent memory, by op
	filling map[fill][]byte
}

type fill struct {
	peer  int
	token uint64
}

func (k *soakSink) started(op uint64, buf []byte) {
	if err, done := k.completed[op]; done {
		k.finish(op, buf, err)
		return
	}
	if k.bufs == nil {
		k.bufs = make(map[uint64][]byte)
	}
	k.bufs[op] = buf
	k.open++
}

func (k *soakSink) finish(op uint64, buf []byte, err error) {
	if err != nil {
		k.breach("send from memory: %v", err)
	}
	clear(buf)
	delete(k.completed, op)
}

func (k *soakSink) Complete(op uint64, err error) {
	if buf, mine := k.bufs[op]; mine {
		delete(k.bufs, op)
		k.open--
		k.finish(op, buf, err)
		return
	}
	k.member.Complete(op, err)
}

func (k *soakSink) Place(peer int, h *transport.Header, offsetBytes, sizeBytes int) []byte {
	if uint64(sizeBytes) != h.Aux || h.Aux > math.MaxInt32 {
		k.breach("data from rank %d: %d B, want %d", peer, sizeBytes, h.Aux)
		return nil
	}
	id := fill{peer, h.Token}
	buf := k.filling[id]
	if buf == nil {
		if k.filling == nil {
			k.filling = make(map[fill][]byte)
		}
		buf = make([]byte, sizeBytes)
		k.filling[id] = buf
		k.begun(peer)
	}
	return buf[offsetBytes:min(sizeBytes, offsetBytes+1+int(h.Token%40000))]
}

func (k *soakSink) Placed(peer int, h *transport.Header) {
	id := fill{peer, h.Token}
	got, begun := k.filling[id]
	delete(k.filling, id)
	if !begun { // it is empty
		k.begun(peer)
	}
	if want := pattern(h.Token, int(h.Aux)); !bytes.Equal(got, want) {
		k.breach("data of %d B from rank %d: %s", h.Aux, peer, difference(got, want))
	}
}
