package mpitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// Check is one thing that communicators must do.
type Check struct {
	Name  string
	Ranks int
	// Threads: ranks use the communicator from several goroutines at once.
	Threads bool
	Run     func(ctx context.Context, c *mpi.Comm) error
}

// Checks are those of Conformance, for runners that name them to processes of
// their own.
func Checks() []Check {
	return []Check{
		{"Sizes", 2, false, checkSizes},
		{"Types", 2, false, checkTypes},
		{"ZeroLength", 2, false, checkZeroLength},
		{"OrderOfOneTag", 2, false, checkOrderOfOneTag},
		{"OrderOfManyTags", 2, false, checkOrderOfManyTags},
		{"PostedBeforeAndAfter", 2, false, checkPostedBeforeAndAfter},
		{"AnySource", 4, false, checkAnySource},
		{"AnyTag", 2, false, checkAnyTag},
		{"WildcardsInOrder", 3, false, checkWildcardsInOrder},
		{"Truncation", 2, false, checkTruncation},
		{"Self", 2, false, checkSelf},
		{"ProcNull", 2, false, checkProcNull},
		{"BadArguments", 2, false, checkBadArguments},
		{"CancelReceive", 2, false, checkCancelReceive},
		{"CancelSend", 2, false, checkCancelSend},
		{"Deadline", 2, false, checkDeadline},
		{"EndedSend", 2, false, checkEndedSend},
		{"SendGivenUp", 2, false, checkSendGivenUp},
		{"Probe", 3, false, checkProbe},
		{"ProbeSelf", 2, true, checkProbeSelf},
		{"BesideSleeper", 2, true, checkBesideSleeper},
		{"RecvAlloc", 2, false, checkRecvAlloc},
		{"HeadToHead", 2, false, checkHeadToHead},
		{"SendrecvRing", 5, false, checkSendrecvRing},
		{"ThousandsOutstanding", 2, false, checkThousandsOutstanding},
		{"Flood", 3, false, checkFlood},
		{"WaitAny", 3, false, checkWaitAny},
		{"WaitAll", 2, false, checkWaitAll},
		{"TestLoop", 2, false, checkTestLoop},
		{"SpentRequests", 2, false, checkSpentRequests},
		{"Done", 2, true, checkDone},
		{"Persistent", 2, false, checkPersistent},
		{"Dup", 4, false, checkDup},
		{"Split", 7, false, checkSplit},
		{"SplitAgain", 6, false, checkSplitAgain},
		{"GiveUp", 5, false, checkGiveUp},
		{"Shadow", 3, false, checkShadow},
		{"Node", 4, false, checkNode},
		{"ManyCommunicators", 3, false, checkManyCommunicators},
		{"Goroutines", 3, true, checkGoroutines},
		{"GoroutinesOfOneTag", 2, true, checkGoroutinesOfOneTag},
		{"CommunicatorsAtOnce", 3, true, checkCommunicatorsAtOnce},
		{"WindowPutGet", 3, false, oneSided(checkWindowPutGet)},
		{"WindowAccumulate", 4, false, oneSided(checkWindowAccumulate)},
		{"WindowLock", 4, false, oneSided(checkWindowLock)},
		{"WindowGiveUp", 3, false, oneSided(checkWindowGiveUp)},
		{"Map", 2, false, checkMap},
		{"AllocMessages", 2, false, checkAllocMessages},
		{"AllocShared", 4, false, checkAllocShared},
		{"Large", 2, false, checkLarge},
	}
}

// Conformance runs every check.
func Conformance(t *testing.T, run Runner) {
	for _, check := range Checks() {
		t.Run(check.Name, func(t *testing.T) {
			if why := whyNotLarge(); check.Name == "Large" && why != "" {
				t.Skip(why)
			}
			run(t, check.Ranks, check.Run)
		})
	}
	t.Run("Close", func(t *testing.T) { run(t, 3, checkClose) })
}

// ConformanceOneGoroutine runs the checks in which each rank is one goroutine,
// as in virtual time.
func ConformanceOneGoroutine(t *testing.T, run Runner) {
	for _, check := range Checks() {
		if check.Threads || check.Name == "Large" {
			continue
		}
		t.Run(check.Name, func(t *testing.T) { run(t, check.Ranks, check.Run) })
	}
}

// fill writes bytes that depend on an identity and their place.
func fill(b []byte, id uint64) {
	for at := 0; at < len(b); at += noiseBytes {
		copy(b[at:], noise(id, at))
	}
}

// filled makes n such bytes.
func filled(id uint64, n int) []byte {
	b := make([]byte, n)
	fill(b, id)
	return b
}

// verify compares bytes with what fill writes.
func verify(b []byte, id uint64) error {
	for at := 0; at < len(b); at += noiseBytes {
		got, want := b[at:min(len(b), at+noiseBytes)], noise(id, at)
		if bytes.Equal(got, want[:len(got)]) {
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				return fmt.Errorf("byte %d of %d is %#02x, want %#02x", at+i, len(b), got[i], want[i])
			}
		}
	}
	return nil
}

// noise is the piece of an identity's bytes that begins at a multiple of
// noiseBytes: a window of one random table.
func noise(id uint64, at int) []byte {
	start := (id*31 + uint64(at/noiseBytes)*7919) % noisePeriod
	return noiseTable()[start : start+noiseBytes]
}

const (
	noiseBytes  = 1 << 20
	noisePeriod = 65521
)

var noiseTable = sync.OnceValue(func() []byte {
	b := make([]byte, noiseBytes+noisePeriod)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(b) // it cannot fail
	return b
})

// expect receives a message of exactly n bytes filled with id.
func expect(ctx context.Context, c *mpi.Comm, src, tag int, id uint64, n int) error {
	buf := make([]byte, n)
	s, err := mpi.Recv(ctx, c, buf, src, tag)
	if err != nil {
		return err
	}
	if err := is(s, src, tag, n); err != nil {
		return err
	}
	return verify(buf, id)
}

// is compares a status.
func is(s mpi.Status, source, tag, nBytes int) error {
	if want := (mpi.Status{Source: source, Tag: tag, Bytes: nBytes}); s != want {
		return fmt.Errorf("status %+v, want %+v", s, want)
	}
	return nil
}

// sync2 makes two ranks wait for each other.
func sync2(ctx context.Context, c *mpi.Comm, peer, tag int) error {
	_, err := mpi.Sendrecv(ctx, c, []byte{1}, peer, tag, make([]byte, 1), peer, tag)
	return err
}

// wants reports an error unless err is the one wanted and an *mpi.Error.
func wants(what string, err, want error) error {
	var at *mpi.Error
	if !errors.Is(err, want) {
		return fmt.Errorf("%s: error %v, want %v", what, err, want)
	}
	if !errors.As(err, &at) {
		return fmt.Errorf("%s: %v is not an *mpi.Error", what, err)
	}
	return nil
}

// wait is Request.Wait for when only the error matters.
func wait(ctx context.Context, r mpi.Request) error {
	_, err := r.Wait(ctx)
	return err
}
