package collective

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// A rank that only gives, as the root of a broadcast does, compares what it called with nobody, and two such ranks may have
// called different things. So a signature has a trail, too: a hash of all calls before, in the order of their numbers. Ranks
// of which the trails differ have called different things before, and find out what: one sends what it remembers to the
// other, which looks for the first call in which they differ and tells all.

const (
	trailFactor = 0x9e3779b97f4a7c15 // odd, so that no difference is lost
	trailShift  = 64 - 16            // so that signatures have its highest 16 bits
	// earlierTime bounds the wait for the rank that looks for the call; it has a look-out.
	earlierTime = 10 * time.Second
	// sentCalls are as many as one message holds.
	sentCalls = (newsMax - newsHead) / signatureBytes
)

const _ = uint(sentCalls - history) // what a rank remembers fits

// called is what a signature has of a call that all ranks have alike: neither the plan, nor the part, nor the trail. Of a
// rejected call it has nothing, since each rank may have made a mistake of its own.
func (s signature) called() signature {
	if s[5] == badArguments {
		return signature{5: badArguments}
	}
	s[2], s[5] = uint8(s.kind()), 0
	s.setTrail(0)
	return s
}

// digest is a hash of what was called.
func (s signature) digest() uint64 {
	s = s.called()
	h := uint64(1)
	for at := 0; at < signatureBytes; at += 8 {
		h = (h ^ binary.LittleEndian.Uint64(s[at:])) * trailFactor
		h ^= bits.RotateLeft64(h, 32)
	}
	return h
}

// set copies a signature, with more bits in the last word. It goes by words, as the slots of the arena do: one load of both
// words would have to wait if they had just been written one by one.
func (s *signature) set(of *signature, more uint64) {
	binary.LittleEndian.PutUint64(s[0:], binary.LittleEndian.Uint64(of[0:]))
	binary.LittleEndian.PutUint64(s[8:], binary.LittleEndian.Uint64(of[8:])|more)
}

func (s *signature) setTrail(trail uint16) { binary.LittleEndian.PutUint16(s[14:], trail) }

func (s signature) trail() uint16 { return binary.LittleEndian.Uint16(s[14:]) }

// earlierError is a mismatch of which the cause is an earlier call of two ranks. They have yet to find out which.
type earlierError struct {
	*mismatchError
	peer  int
	seq   uint32    // of the call in which they noticed
	asked time.Time // since then it waits for a rank to find the cause; zero: not yet
}

func (e *earlierError) Unwrap() error { return e.mismatchError }

// mismatch is the error of ranks that called different things as number seq, or before.
func (s *state) mismatch(shadow *mpi.Comm, seq uint32, mine signature, peer int, other signature) error {
	if mine.trail() != other.trail() {
		return s.mismatchBefore(shadow, seq, peer)
	}
	return mine.compare(s.rank, peer, shadow.Host(peer), other)
}

// mismatchBefore is the error of ranks that called different things before number seq.
func (s *state) mismatchBefore(shadow *mpi.Comm, seq uint32, peer int) error {
	return &earlierError{peer: peer, seq: seq, mismatchError: s.notSame(seq, peer, shadow.Host(peer))}
}

// notSame is an error that says no more than that two ranks differ before number seq.
func (s *state) notSame(seq uint32, peer int, host string) *mismatchError {
	return &mismatchError{text: fmt.Sprintf("rank %d and rank %d (%s) called different things before #%d", s.rank, peer, host, seq)}
}

// findCause has the other rank look for the call that is the cause of e, and returns the error that names it. It is nil if that
// is not known yet and the caller does not wait.
func (s *state) findCause(ctx context.Context, shadow *mpi.Comm, e *earlierError, how effort) error {
	if e.asked.IsZero() {
		e.asked = time.Now()
		if s.pastSent.CompareAndSwap(false, true) { // one answer ends all calls
			s.sendPast(shadow, e)
		}
	}
	left := time.Until(e.asked.Add(earlierTime))
	if how == tryOnce {
		select {
		case <-s.off.Done():
			return s.broken.Load().Err
		default:
		}
		if left > 0 {
			return nil
		}
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	select {
	case <-s.off.Done():
		return s.broken.Load().Err
	case <-ctx.Done():
		return e
	}
}

// causeOf is the error of a caller that waits: err or, if its cause is an earlier call, an error that names that.
func (s *state) causeOf(ctx context.Context, shadow *mpi.Comm, err error) error {
	var e *earlierError
	if !errors.As(err, &e) {
		return err
	}
	return s.findCause(ctx, shadow, e, untilDone)
}

// sendPast sends the peer what this rank called before they noticed.
func (s *state) sendPast(shadow *mpi.Comm, e *earlierError) {
	s.mu.Lock()
	s.watch.start(s) // for the answer
	n := s.pastBefore(e.seq)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	_, _ = mpi.Isend(shadow, n.encode(), e.peer, ctrlTag).Wait(ctx) // whom it does not reach does not answer
}

// pastBefore is what this rank called before a number: of each call its signature, or zeros where it is not known any more. The
// state is locked.
func (s *state) pastBefore(seq uint32) news {
	calls := max(0, min(sentCalls, int(seq)-1))
	text := make([]byte, 0, calls*signatureBytes)
	for n := seq - uint32(calls); n < seq; n++ {
		var known signature
		if p, _ := s.watch.recall(n); p.seq == n {
			known = p.signature
		}
		text = append(text, known[:]...)
	}
	return news{kind: newsPast, seq: seq, text: string(text)}
}

// compareWithPast finds the first call in which this rank and another that has sent its past differ.
func (s *state) compareWithPast(from int, host string, n news) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := len(n.text) / signatureBytes
	for i := range calls {
		seq := n.seq - uint32(calls-i)
		mine, _ := s.watch.recall(seq)
		theirs := signature([]byte(n.text[i*signatureBytes:][:signatureBytes]))
		if mine.seq != seq || theirs == (signature{}) || mine.signature.called() == theirs.called() {
			continue
		}
		if mine.signature.trail() != theirs.trail() {
			return s.notSame(seq, from, host)
		}
		return &mismatchError{text: fmt.Sprintf("in #%d rank %d called %v, rank %d (%s) called %v", seq, s.rank, mine.signature, from, host, theirs)}
	}
	return s.notSame(n.seq, from, host)
}
