package shm

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/osyield"
)

// exportSegment has a rank export a segment of its own.
func exportSegment(t *testing.T, r *testRank, sizeBytes int) (handle []byte) {
	t.Helper()
	handle, _ = exported(t, r, sizeBytes)
	return handle
}

// exported is memory that a rank exports until the end of the test.
func exported(t *testing.T, r *testRank, sizeBytes int) (handle, mem []byte) {
	t.Helper()
	fd, handle, mem, err := r.export(sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Unexport(handle)
		Unmap(mem)
		unix.Close(fd)
	})
	return handle, mem
}

// bufferFor is memory for a long message of a rank.
func bufferFor(t *testing.T, r *testRank, n int, memory string) []byte {
	t.Helper()
	if memory != mappedMemory {
		return make([]byte, n)
	}
	_, mem := exported(t, r, n)
	return mem
}

// TestMapWithoutDescriptor: an Import that gets no descriptor fails, and the next one does not.
func TestMapWithoutDescriptor(t *testing.T) {
	r := openRank(t, 0, 2, nil)
	p := start(t, r, "import", nil)
	p.say(t, hex.EncodeToString(exportSegment(t, r, importBytes)))
	if got := p.line(t); got != "mapped" {
		t.Errorf("the limited process says %q", got)
	}
}

// TestMapFromStopped: neither a question nor an answer waits for a peer that does not
// read its socket.
func TestMapFromStopped(t *testing.T) {
	r := openWorld(t, 2, nil)[0]
	handle := exportSegment(t, r, importBytes)
	conn, _ := socketPair(t)
	var full error
	for full == nil {
		full = sendPacket(conn, make([]byte, maxPacket))
	}
	if !errors.Is(full, unix.EAGAIN) {
		t.Fatal(full)
	}
	r.hasMet(1, conn)
	if _, err := r.Import(t.Context(), 1, handle); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a question: %v, want %v", err, unix.EAGAIN)
	}
	if len(r.exports.asked) != 0 {
		t.Error("a question that was not asked waits for its answer")
	}
	if err := r.exports.answer(conn, 1, binary.BigEndian.Uint64(handle)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("an answer: %v, want %v", err, unix.EAGAIN)
	}
}

// TestMapUnanswered: an Import that gets no answer says whose memory it was and why it waits no longer.
func TestMapUnanswered(t *testing.T) {
	r := openWorld(t, 2, nil)[0]
	conn, _ := socketPair(t)
	r.hasMet(1, conn)
	given := errors.New("given up")
	ended, end := context.WithCancelCause(t.Context())
	end(given)
	handle := make([]byte, handleBytes)
	if _, err := r.Import(ended, 1, handle); !errors.Is(err, given) {
		t.Errorf("an Import that is given up: %v, want %v", err, given)
	}
	closed := make(chan error, 1)
	go func() { _, err := r.Import(t.Context(), 1, handle); closed <- err }()
	for asked := 0; asked == 0; osyield.Yield() {
		r.exports.mu.Lock()
		asked = len(r.exports.asked)
		r.exports.mu.Unlock()
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; !errors.Is(err, errClosed) {
		t.Errorf("an Import while the provider is closed: %v, want %v", err, errClosed)
	}
}

// TestLinkedThoughGivenUp: an ended context hides no link that there is.
func TestLinkedThoughGivenUp(t *testing.T) {
	r := openWorld(t, 2, nil)[0]
	conn, _ := socketPair(t)
	r.hasMet(1, conn)
	ended, end := context.WithCancel(t.Context())
	end()
	for range 64 { // by chance it might be seen
		if l, err := r.linked(ended, 1); l == nil || err != nil {
			t.Fatalf("a link that there is: %v, %v", l, err)
		}
	}
}

// TestMapOutOfTime: an Import that takes too long says how long.
func TestMapOutOfTime(t *testing.T) {
	r := openWorld(t, 2, nil)[0]
	conn, _ := socketPair(t)
	r.hasMet(1, conn)
	r.cfg.HandshakeTimeout = time.Millisecond
	_, err := r.Import(t.Context(), 1, make([]byte, handleBytes))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(fmt.Sprint(err), "rank 1: no answer: 1ms are over") {
		t.Errorf("an Import that takes more than 1ms: %v", err)
	}
}

// hasMet gives a rank a link over conn, which nobody reads.
func (r *testRank) hasMet(peer int, conn *net.UnixConn) {
	met := &encounter{phase: meetEnded, ended: make(chan struct{}), link: newLink(conn)}
	close(met.ended)
	r.meetings.mu.Lock()
	r.meetings.byRank[peer] = met
	r.meetings.mu.Unlock()
}

// socketPair makes a socket as two ranks have it.
func socketPair(t *testing.T) (mine, theirs *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, end := range []**net.UnixConn{&mine, &theirs} {
		file := os.NewFile(uintptr(fds[i]), "socket")
		defer file.Close()
		conn, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		*end = conn.(*net.UnixConn)
	}
	return mine, theirs
}

// TestMapAtTheEnd: the provider may be closed when an Import is about to look at its link.
func TestMapAtTheEnd(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	met, err := rs[0].want(1)
	if err != nil {
		t.Fatal(err)
	}
	exported := exportSegment(t, rs[0], importBytes)
	if err := rs[0].Close(); err != nil {
		t.Fatal(err)
	}
	rs[0].Unexport(exported) // by an owner that frees the segment only now
	if l, err := rs[0].outcome(met); l != nil || !errors.Is(err, errClosed) {
		t.Errorf("link %v and error %v of a closed provider, want %v", l, err, errClosed)
	}
	if _, err := rs[0].Import(t.Context(), 1, make([]byte, handleBytes)); !errors.Is(err, errClosed) {
		t.Errorf("an Import of a closed provider: %v, want %v", err, errClosed)
	}
}

// TestAskedAtTheEnd: a peer's last packet may be handled when the link is being closed because the peer is lost.
func TestAskedAtTheEnd(t *testing.T) {
	p := openWorld(t, 2, nil)[0]
	conn, _ := socketPair(t)
	l := newLink(conn)
	l.close()
	ask := binary.BigEndian.AppendUint64([]byte{packetAsk}, 1)
	if err := p.packet(l, append(ask, make([]byte, handleBytes)...), nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a question on a closed link: %v, want %v", err, net.ErrClosed)
	}
}

// TestManyImports: any number of goroutines may ask a peer at once.
func TestManyImports(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	handle := exportSegment(t, rs[1], importBytes)
	start := make(chan struct{})
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			<-start
			mem, err := rs[0].Import(t.Context(), 1, handle)
			if err != nil {
				t.Error(err)
				return
			}
			Unmap(mem)
		})
	}
	close(start)
	all.Wait()
}

// TestImportAfterTheEnd: who asks when the context has ended hears of that, and of nothing that the peer might be blamed for.
func TestImportAfterTheEnd(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	handle := exportSegment(t, rs[1], importBytes)
	over := errors.New("it is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	for range 50 {
		if _, err := rs[0].Import(ctx, 1, handle); !errors.Is(err, over) || strings.Contains(err.Error(), "questions") {
			t.Fatalf("error %v", err)
		}
	}
}

// TestUnheardImports: a peer that reads no answers for a while is not lost by who gives them, however many have asked and gone.
func TestUnheardImports(t *testing.T) {
	rs := openWorld(t, 2, nil)
	meetAll(t, rs)
	handle := exportSegment(t, rs[1], importBytes)
	_, shown := exported(t, rs[1], 1<<20)
	s := &rs[0].endpoint(1).link.sharing
	s.mu.Lock() // for which whoever reads the socket waits, when it has been shown memory
	rs[1].endpoint(0).shown(shown)
	var refused error
	for range 400 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := rs[0].Import(ctx, 1, handle); err != nil {
			refused = err
		}
		cancel()
	}
	s.mu.Unlock()
	if refused == nil || !strings.Contains(refused.Error(), "questions to answer") {
		t.Errorf("the last error: %v", refused)
	}
	mem, err := rs[0].Import(t.Context(), 1, handle)
	if err != nil {
		t.Fatal(err)
	}
	Unmap(mem)
	for i, r := range rs {
		r.mu.Lock()
		r.Poll(r)
		r.mu.Unlock()
		for peer, why := range r.lost {
			t.Errorf("rank %d has lost rank %d, which lives: %v", i, peer, why)
		}
	}
}
