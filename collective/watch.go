package collective

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// watch is the look-out of a communicator: a goroutine that wakes now and
// then, reads the other ranks' announcements, asks ranks that keep this one waiting what
// they are doing, and answers such questions. It never touches the fast path.
// It is guarded by the state's lock except where it is the goroutine's own.
type watch struct {
	running bool
	active  []*execution
	floats  int           // nonblocking ones among them
	calls   [history]past // by sequence number
	note    string        // what the program says it is doing
	noted   time.Time

	// The goroutine's own; the maps are by sequence number.
	sends    []mpi.Request
	letter   letter
	answers  map[uint32]string
	patience map[uint32]*patience
}

// past is a collective that was started here.
type past struct {
	seq       uint32
	signature signature
}

const (
	history  = 16
	tick     = 50 * time.Millisecond  // while collectives are under way
	slowTick = 250 * time.Millisecond // else
	fastTick = time.Millisecond       // while nonblocking ones are
	// askAfter is how long a collective makes no progress before the rank that it
	// waits for is asked. The answer may be that it called something else.
	askAfter = time.Second
)

// patience is how long the look-out has seen an execution make no progress.
type patience struct {
	progress uint32
	since    time.Time
	asked    bool
	reported time.Time
}

// add notes an execution. The state is locked.
func (w *watch) add(x *execution) {
	w.active = append(w.active, x)
	if x.floating {
		w.floats++
	}
	w.heard(x.seq, x.entry.signature)
	if !w.running && x.state.watched() {
		w.running = true
		go x.state.lookOut()
	}
}

// heard notes which collective was started. The state is locked.
func (w *watch) heard(seq uint32, s signature) {
	p := &w.calls[seq%history] // as a whole it would be copied by way of the stack
	p.seq, p.signature = seq, s
}

// watched: simulations in virtual time have no look-out, since it lives in real time.
func (s *state) watched() bool { return s.size > 1 && !s.sizesOnly && s.config.StallAfter >= 0 }

// remove forgets an execution. The state is locked.
func (w *watch) remove(x *execution) {
	if x.floating {
		w.floats--
	}
	last := len(w.active) - 1
	for i, a := range w.active {
		if a == x {
			w.active[i] = w.active[last]
			w.active[last] = nil
			w.active = w.active[:last]
			return
		}
	}
}

// Note says what this rank is about to do, for the stall reports of the
// ranks that wait for it: collective.Note(c, "ps.Push"). Not collective.
func Note(c *mpi.Comm, what string) {
	s := stateOf(c)
	s.mu.Lock()
	s.watch.note, s.watch.noted = what, time.Now()
	s.mu.Unlock()
}

// lookOut runs until the communicator is gone or its world closed.
func (s *state) lookOut() {
	timer := time.NewTimer(tick)
	defer timer.Stop()
	s.watch.patience = make(map[uint32]*patience)
	s.watch.answers = make(map[uint32]string)
	var last time.Time
	for range timer.C {
		c := s.self.Value()
		if c == nil {
			return
		}
		next := fastTick
		if !s.push() {
			next = slowTick
		}
		if time.Since(last) >= tick {
			last = time.Now()
			if !s.read(c.Shadow()) {
				s.mu.Lock()
				s.watch.running = false
				s.mu.Unlock()
				return
			}
			if s.inspect(c) {
				next = min(next, tick)
			}
		}
		timer.Reset(next)
	}
}

// push advances nonblocking collectives that nobody waits for at the moment,
// so that they end although the program computes, or waits for something else. It
// reports whether there are any.
func (s *state) push() bool {
	s.mu.Lock()
	floats := s.watch.floats
	var active []*execution
	if floats > 0 {
		active = append(active, s.watch.active...)
	}
	s.mu.Unlock()
	for _, x := range active {
		if x.turn.TryLock() {
			if x.live.Load() != 0 && x.floating && !x.ended {
				x.advance(context.Background(), false)
			}
			x.turn.Unlock()
		}
	}
	return floats > 0
}

// read handles what has come on the control tag; false when the communicator
// is of no more use. Nothing in here blocks: the world may be closed meanwhile.
func (s *state) read(shadow *mpi.Comm) bool {
	w := &s.watch
	w.sends = slices.DeleteFunc(w.sends, func(r mpi.Request) bool {
		_, done, _ := r.Test() // one that failed went to a rank that is lost or has left
		return done
	})
	for {
		if w.letter.text == nil {
			status, ok, err := shadow.Iprobe(mpi.AnySource, ctrlTag)
			if err != nil {
				// Closed, revoked, or a rank is lost. Package mpi fails all waits; one that
				// was about to begin is called off here.
				s.callOff(&Error{Op: "collective", Comm: s.name, Rank: s.rank, Err: s.nameLost(shadow, err)})
				return false
			}
			if !ok {
				return true
			}
			w.letter.text, w.letter.from = make([]byte, status.Bytes), status.Source
			w.letter.request = mpi.Irecv(shadow, w.letter.text, status.Source, ctrlTag)
		}
		_, done, err := w.letter.request.Test()
		if !done {
			return true // the rest comes until the next tick
		}
		got := w.letter
		w.letter = letter{}
		if err != nil {
			return false
		}
		if n, err := decodeNews(got.text); err == nil {
			s.heed(shadow, got.from, n)
		}
	}
}

// letter is news being received.
type letter struct {
	text    []byte
	from    int
	request mpi.Request
}

// post sends news without waiting for it to leave.
func (s *state) post(shadow *mpi.Comm, n news, to int) {
	s.watch.sends = append(s.watch.sends, mpi.Isend(shadow, n.encode(), to, ctrlTag))
}

// nameLost says which rank it is about in an error of a probe for any rank.
func (s *state) nameLost(shadow *mpi.Comm, err error) error {
	lost := shadow.Lost()
	if len(lost) == 0 || !errors.Is(err, mpi.ErrPeerLost) {
		return err
	}
	return &mpi.Error{Op: "collective", Comm: s.name, Rank: s.rank, Peer: lost[0], Host: shadow.Host(lost[0]), Tag: mpi.AnyTag, Err: mpi.ErrPeerLost}
}

// heed acts on one message.
func (s *state) heed(shadow *mpi.Comm, from int, n news) {
	switch n.kind {
	case newsAbort:
		s.callOff(s.announced(from, shadow.Host(from), n))
	case newsQuery:
		s.mu.Lock()
		mine := s.watch.calls[n.seq%history]
		answer := s.describe(n.seq)
		s.mu.Unlock()
		if mine.seq == n.seq && mine.signature != n.signature {
			err := mine.signature.compare(s.rank, from, shadow.Host(from), n.signature)
			why := &Error{Op: "collective", Comm: s.name, Seq: n.seq, Rank: s.rank, Err: err}
			abort := abortOf(why)
			for r := range s.size {
				if r != s.rank {
					s.post(shadow, abort, r)
				}
			}
			s.callOff(why)
			return
		}
		s.post(shadow, news{kind: newsReply, seq: n.seq, text: answer}, from)
	case newsReply:
		if len(s.watch.answers) > history {
			clear(s.watch.answers)
		}
		s.watch.answers[n.seq] = n.text
	}
}

// describe says what this rank is doing, to one that waits for it in
// collective seq. The state is locked.
func (s *state) describe(seq uint32) string {
	var b strings.Builder
	for _, x := range s.watch.active {
		x.mu.Lock()
		peer := x.peer
		x.mu.Unlock()
		fmt.Fprintf(&b, "it is in %v #%d", x.entry.signature, x.seq)
		if peer >= 0 {
			fmt.Fprintf(&b, " and waits for rank %d", peer)
		}
		b.WriteString("; ")
	}
	if len(s.watch.active) == 0 {
		fmt.Fprintf(&b, "it has not called collective #%d yet; ", seq)
	}
	if s.watch.note != "" {
		fmt.Fprintf(&b, "last seen in %s %.1f s ago; ", s.watch.note, time.Since(s.watch.noted).Seconds())
	}
	b.WriteString("its stacks:")
	for _, stack := range programStacks() {
		if b.Len()+len(stack) > stackBytes {
			break
		}
		b.WriteString("\n" + stack)
	}
	return b.String()
}

// stackBytes bounds what is told of a rank's stacks.
const stackBytes = 8 << 10

// programStacks is the stacks of all goroutines but those that the runtime's
// library keeps for itself, which say nothing about the program.
func programStacks() []string {
	all := make([]byte, 256<<10)
	all = all[:runtime.Stack(all, true)]
	return slices.DeleteFunc(strings.Split(string(all), "\n\n"), func(stack string) bool {
		return strings.Contains(stack, ").lookOut(") || strings.Contains(stack, ").startKeeper")
	})
}

// glimpse is what the look-out sees of an execution.
type glimpse struct {
	kind      plan.Kind
	seq       uint32
	signature signature
	progress  uint32
	peer      int // it waits for; -1: nobody in particular
}

// inspect looks at what is under way and reports whether anything is.
func (s *state) inspect(c *mpi.Comm) bool {
	s.mu.Lock()
	seen := make([]glimpse, 0, len(s.watch.active))
	for _, x := range s.watch.active {
		x.mu.Lock()
		seen = append(seen, glimpse{x.entry.kind, x.seq, x.entry.signature, x.progress.Load(), int(x.peer)})
		x.mu.Unlock()
	}
	stallAfter, log := s.config.stallAfter(), s.config.log()
	s.mu.Unlock()
	now := time.Now()
	before := s.watch.patience
	s.watch.patience = make(map[uint32]*patience, len(seen))
	for _, g := range seen {
		p := before[g.seq]
		if p == nil || p.progress != g.progress {
			p = &patience{progress: g.progress, since: now}
		}
		s.watch.patience[g.seq] = p
		waited := now.Sub(p.since)
		if g.peer < 0 || waited < askAfter {
			continue
		}
		overdue := waited >= stallAfter && now.Sub(p.reported) >= stallAfter
		if !p.asked || overdue {
			p.asked = true
			s.ask(c.Shadow(), g)
		}
		if overdue {
			p.reported = now
			answer, ok := s.watch.answers[g.seq]
			if !ok {
				answer = "it does not answer"
			}
			log.Warn(fmt.Sprintf("%s #%d on %s waits for rank %d (%s) since %.1f s; %s",
				g.kind, g.seq, s.name, g.peer, c.Host(g.peer), waited.Seconds(), answer))
		}
	}
	return len(seen) > 0
}

// ask wants to know what the rank does for which this one waits.
func (s *state) ask(shadow *mpi.Comm, g glimpse) {
	s.post(shadow, news{kind: newsQuery, seq: g.seq, signature: g.signature}, g.peer)
}
