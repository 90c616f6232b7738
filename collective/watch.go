package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// watch is the look-out of a communicator: a goroutine that wakes now and
// then, reads the other ranks' announcements, asks ranks that keep this one waiting what
// they are doing, and answers such questions. It never touches the fast path.
// It is guarded by the state's lock except where it is the goroutine's own.
type watch struct {
	running    bool
	dozing     bool          // the look-out may sleep for longer than fastTick
	wake       chan struct{} // ends that
	active     []*execution
	calls      []past // the last ones by number, for those that ask; empty where nobody does
	alltoallvs [alltoallvHistory]pastAlltoallv
	note       string // what the program says it is doing
	noted      time.Time

	// The goroutine's own.
	sends    []mpi.Request
	letter   letter
	stacks   stacks
	pushed   []*execution
	seen     []glimpse
	patience map[question]patience
}

// past is a collective that was started here.
type past struct {
	seq       uint32
	signature signature
}

const (
	history          = 512 // calls of which a rank knows what they were, besides those under way
	alltoallvHistory = 16  // fewer, since each keeps its counts

	tick     = 50 * time.Millisecond  // while collectives are under way
	slowTick = 250 * time.Millisecond // else
	fastTick = time.Millisecond       // while nonblocking ones have not ended
)

// add notes an execution. The state is locked.
func (w *watch) add(x *execution) {
	w.active = append(w.active, x)
	w.heard(x.seq, &x.signature)
	if x.entry.counts[1] != nil {
		w.alltoallvs[x.seq%alltoallvHistory] = pastAlltoallv{x.seq, x.entry.exchanges()}
	}
	w.start(x.state)
	if x.nonblocking && w.dozing {
		w.dozing = false
		select {
		case w.wake <- struct{}{}:
		default: // it has yet to take an earlier one
		}
	}
}

// start sees to it that there is a look-out. The state is locked.
func (w *watch) start(s *state) {
	if w.running || !s.watched() {
		return
	}
	w.running, w.dozing = true, true
	if w.wake == nil {
		w.wake = make(chan struct{}, 1)
	}
	go s.lookOut()
}

// heard notes which collective was started. The state is locked.
func (w *watch) heard(seq uint32, s *signature) {
	if len(w.calls) == 0 {
		return
	}
	p := &w.calls[seq%history] // as a whole it would be copied by way of the stack
	p.seq = seq
	p.signature.set(s, 0)
}

// recall is what was started here as number seq, under way or among the last calls, and its counts if it is an alltoallv of
// which they are still known. The state is locked.
func (w *watch) recall(seq uint32) (p past, alltoallv exchanges) {
	for _, x := range w.active {
		if x.seq != seq {
			continue
		}
		return past{seq, x.signature}, x.entry.exchanges()
	}
	if a := w.alltoallvs[seq%alltoallvHistory]; a.seq == seq {
		alltoallv = a.exchanges
	}
	return w.calls[seq%history], alltoallv
}

// watched: simulations in virtual time have no look-out, since it lives in real time.
func (s *state) watched() bool { return s.size > 1 && !s.sizesOnly }

// remove forgets an execution. The state is locked.
func (w *watch) remove(x *execution) {
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
	s.watch.start(s) // which answers them, also before the first collective here
	s.mu.Unlock()
}

// lookOut runs until the communicator is gone or its world closed.
func (s *state) lookOut() {
	timer := time.NewTimer(tick)
	defer timer.Stop()
	s.watch.patience = make(map[question]patience)
	var last time.Time // that it did more than push nonblocking ones
	busy := false
	for {
		select {
		case <-timer.C:
		case <-s.watch.wake:
			timer.Reset(fastTick)
			continue
		}
		c := s.self.Value()
		if c == nil {
			return
		}
		pushes := s.push()
		if time.Since(last) >= tick {
			last = time.Now()
			if !s.read(c.Shadow()) {
				s.mu.Lock()
				s.watch.running = false
				s.mu.Unlock()
				return
			}
			busy = s.inspect(c)
		}
		switch {
		case pushes:
			timer.Reset(fastTick)
		case busy:
			timer.Reset(tick)
		default:
			timer.Reset(slowTick)
		}
	}
}

// push advances nonblocking collectives that nobody waits for at the moment,
// so that they end although the program computes, or waits for something else. It
// reports whether there were any that had not ended.
func (s *state) push() bool {
	w := &s.watch
	s.mu.Lock()
	for _, x := range w.active {
		if x.nonblocking && !x.awaitsCaller() {
			w.pushed = append(w.pushed, x)
		}
	}
	w.dozing = len(w.pushed) == 0 // what begins from now on wakes it then
	s.mu.Unlock()
	some := len(w.pushed) > 0
	for _, x := range w.pushed {
		if x.turn.TryLock() {
			if x.live.Load() != 0 && x.nonblocking && !x.ended {
				x.advance(context.Background(), tryOnce)
			}
			x.turn.Unlock()
		}
	}
	clear(w.pushed)
	w.pushed = w.pushed[:0]
	return some
}

// awaitsCaller reports whether the execution has ended and has not been waited for.
func (x *execution) awaitsCaller() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.peer == finished
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
			text := make([]byte, status.Bytes)
			w.letter = letter{text, status.Source, mpi.Irecv(shadow, text, status.Source, ctrlTag), time.Now()}
		}
		status, done, err := w.letter.request.Test()
		if !done && time.Since(w.letter.since) > settleTime {
			w.letter.request.Cancel() // no other letter is read meanwhile
			status, done, err = w.letter.request.Test()
		}
		if !done {
			return true // the rest comes until the next tick
		}
		got := w.letter
		w.letter = letter{}
		if err != nil {
			continue // if the communicator is of no more use, the next probe says so, and why
		}
		if n, err := decodeNews(got.text[:status.Bytes]); err == nil {
			s.heed(shadow, got.from, n)
		}
	}
}

// letter is news being received. If its sender gives it up while it is on its way, the receive goes on and takes the
// sender's next news, which may be longer or shorter, or may never come.
type letter struct {
	text    []byte
	from    int
	request mpi.Request
	since   time.Time
}

// post sends news without waiting for it to leave.
func (s *state) post(shadow *mpi.Comm, n news, to int) {
	s.watch.sends = append(s.watch.sends, mpi.Isend(shadow, n.encode(), to, ctrlTag))
}

// nameLost says which rank is lost in an error of a probe for any rank.
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
		s.callOff(s.announced(n))
	case newsQuery:
		s.mu.Lock()
		mine, alltoallv := s.watch.recall(n.seq)
		s.mu.Unlock()
		var err error
		switch {
		case mine.seq != n.seq:
		case mine.signature.trail() != n.signature.trail(): // what is wrong is in an earlier call
			if !s.repeat(shadow, from) {
				s.mu.Lock()
				past := s.pastBefore(n.seq)
				s.mu.Unlock()
				s.post(shadow, past, from)
			}
			return
		case mine.signature.differs(n.signature):
			err = mine.signature.compare(s.rank, from, shadow.Host(from), n.signature)
		case alltoallv.known() && n.signature.phase() == whole:
			err = alltoallv.with(from).compare(s.rank, from, shadow.Host(from), n.exchange)
		}
		if err != nil {
			s.endForAll(shadow, n.seq, err)
			return
		}
		if s.repeat(shadow, from) {
			return
		}
		s.post(shadow, news{kind: newsReply, seq: n.seq, text: s.describe(n.seq) + s.watch.stacks.text(time.Now(), programStacks)}, from)
	case newsReply:
		s.watch.answered(question{n.seq, from}, n.text)
	case newsPast:
		if !s.repeat(shadow, from) {
			s.endForAll(shadow, n.seq, s.compareWithPast(from, shadow.Host(from), n))
		}
	}
}

// endForAll ends collectives because ranks called different things.
func (s *state) endForAll(shadow *mpi.Comm, seq uint32, mismatch error) {
	why := &Error{Op: "collective", Comm: s.name, Seq: seq, Rank: s.rank, Err: mismatch}
	abort := s.abortOf(shadow, why)
	for r := range s.size {
		if r != s.rank {
			s.post(shadow, abort, r)
		}
	}
	s.callOff(why)
}

// repeat tells a rank that collectives have ended, if they have for a reason that it does not learn by itself: since it
// asks, the announcement has not reached it.
func (s *state) repeat(shadow *mpi.Comm, to int) bool {
	b := s.broken.Load()
	if b == nil || !b.tells() {
		return false
	}
	s.post(shadow, s.abortOf(shadow, b), to)
	return true
}

// describe says what this rank is doing, to one that waits for it in
// collective seq, but for its stacks.
func (s *state) describe(seq uint32) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, x := range s.watch.active {
		x.mu.Lock()
		peer := x.peer
		x.mu.Unlock()
		switch peer {
		case elsewhere:
		case finished:
			fmt.Fprintf(&b, "it has finished %v #%d and not waited for it; ", x.signature, x.seq)
		case nobody:
			fmt.Fprintf(&b, "it is in %v #%d; ", x.signature, x.seq)
		default:
			fmt.Fprintf(&b, "it is in %v #%d and waits for rank %d; ", x.signature, x.seq, peer)
		}
	}
	if len(s.watch.active) == 0 {
		if mine, _ := s.watch.recall(seq); mine.seq == seq {
			// Between its parts, at the program's operator, or its messages have left.
			fmt.Fprintf(&b, "it has called %v #%d and is busy in it or done with it; ", mine.signature, seq)
		} else {
			fmt.Fprintf(&b, "it has not called collective #%d yet; ", seq)
		}
	}
	if s.watch.note != "" {
		fmt.Fprintf(&b, "last seen in %s %.1f s ago; ", s.watch.note, time.Since(s.watch.noted).Seconds())
	}
	return b.String()
}
