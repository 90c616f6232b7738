package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/testlog"
)

func secretOf(b byte) []byte { return bytes.Repeat([]byte{b}, SecretBytes) }

func self(rank int) Self { return Self{Secret: secretOf(7), Job: "12.0.0", Rank: rank, Size: 4} }

// known is DoorConfig.Self of a rank that knows the layout.
func known(<-chan struct{}) (Self, bool) { return self(0), true }

type entry struct {
	conn net.Conn
	peer Peer
}

// hall is a door on loopback with what came through it.
type hall struct {
	*Door
	entered chan entry
	log     *testlog.Buffer
}

func openHall(t *testing.T, cfg DoorConfig) *hall {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hall{entered: make(chan entry, 64), log: &testlog.Buffer{}}
	if cfg.Self == nil {
		cfg.Self = known
	}
	if cfg.Admit == nil {
		cfg.Admit = func(Peer) Verdict { return Admitted }
	}
	if cfg.HelloTimeout == 0 {
		cfg.HelloTimeout = time.Until(soon())
	}
	cfg.Enter = func(c net.Conn, p Peer) { h.entered <- entry{c, p} }
	cfg.Log = slog.New(slog.NewTextHandler(h.log, nil))
	h.Door = OpenDoor(listener, cfg)
	t.Cleanup(func() { h.Close() })
	return h
}

func (h *hall) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", h.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// soon is the end of what takes a moment, on any machine.
func soon() time.Time { return time.Now().Add(2 * time.Minute) }

func TestHello(t *testing.T) {
	h := openHall(t, DoorConfig{})
	conn, me := h.dial(t), self(3)
	peer, err := Greet(conn, &me, Data, 0, soon())
	if err != nil || peer != (Peer{0, Data}) {
		t.Fatalf("Greet = %v, %v", peer, err)
	}
	e := <-h.entered
	if e.peer != (Peer{3, Data}) {
		t.Fatalf("acceptor saw %v", e.peer)
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := e.conn.Read(b[:]); err != nil || b[0] != 'x' {
		t.Fatalf("the byte after the hello: %q, %v", b, err)
	}
}

func TestHelloRefuses(t *testing.T) {
	layout := [32]byte{1}
	for _, c := range []struct {
		name   string
		change func(*Self)
		peer   int
		want   error
		logged string
	}{
		{"wrong secret", func(s *Self) { s.Secret = secretOf(8) }, 0, ErrStranger, ""},
		{"other restart", func(s *Self) { s.Job = "12.0.1" }, 0, ErrStranger, ""},
		{"other size", func(s *Self) { s.Size = 5 }, 0, ErrRefused, "job has 5 ranks"},
		{"other layout", func(s *Self) { s.Layout = layout }, 0, ErrLayoutHash, "another layout"},
		{"other rank wanted", func(*Self) {}, 2, ErrRefused, "wants rank 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := openHall(t, DoorConfig{})
			me := self(3)
			c.change(&me)
			conn := h.dial(t)
			if _, err := Greet(conn, &me, Tree, c.peer, soon()); !errors.Is(err, c.want) {
				t.Fatalf("Greet: %v, want %v", err, c.want)
			}
			conn.Close()
			h.settle(t, c.logged)
			if len(h.entered) != 0 {
				t.Fatal("it was let in")
			}
		})
	}
}

// settle waits until a refusal with that text has been logged.
func (h *hall) settle(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), soon())
	defer cancel()
	if err := h.log.Await(ctx, func(log string) bool {
		return strings.Contains(log, "connection refused") && strings.Contains(log, text)
	}); err != nil {
		t.Fatalf("no refusal with %q: %v", text, err)
	}
}

// A recorded hello of a real rank is played again, message for message.
func TestHelloReplay(t *testing.T) {
	h := openHall(t, DoorConfig{})
	me, recorder := self(1), &recorder{Conn: h.dial(t)}
	if _, err := Greet(recorder, &me, Data, 0, soon()); err != nil {
		t.Fatal(err)
	}
	(<-h.entered).conn.Close()

	conn := h.dial(t)
	conn.SetDeadline(soon())
	conn.Write(recorder.sent.Bytes())
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Fatal(err)
	}
	if len(answer) > introBytes+macBytes {
		t.Fatalf("the replay got a verdict: %d bytes", len(answer))
	}
	h.settle(t, "replay")
	if len(h.entered) != 0 {
		t.Fatal("the replay was let in")
	}
}

type recorder struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.sent.Write(b)
	return r.Conn.Write(b)
}

// An impostor on the acceptor's side does not learn a proof it could use, and is
// recognised before the dialer sends one.
func TestHelloImpostor(t *testing.T) {
	dialer, acceptor := net.Pipe()
	defer acceptor.Close()
	got := make(chan int, 1)
	go func() {
		b := make([]byte, introBytes)
		io.ReadFull(acceptor, b)
		acceptor.Write(append(b, make([]byte, macBytes)...)) // reflects the dialer's own words
		n, _ := acceptor.Read(b)
		got <- n
	}()
	me := self(1)
	_, err := Greet(dialer, &me, Data, 0, soon())
	dialer.Close()
	if !errors.Is(err, ErrStranger) {
		t.Fatalf("Greet: %v", err)
	}
	if n := <-got; n != 0 {
		t.Fatalf("the dialer sent %d more bytes to an impostor", n)
	}
}

func TestDoorGarbageAndScan(t *testing.T) {
	h := openHall(t, DoorConfig{LogEvery: time.Hour})
	for i := range 50 {
		conn := h.dial(t)
		if i%2 == 0 {
			conn.Write([]byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n"))
		}
		conn.Close()
	}
	h.settle(t, "")
	conn, me := h.dial(t), self(2)
	if _, err := Greet(conn, &me, Bootstrap, Anyone, soon()); err != nil {
		t.Fatalf("a rank after the scan: %v", err)
	}
	<-h.entered
	if n := strings.Count(h.log.String(), "\n"); n != 1 {
		t.Fatalf("%d log testlog.Buffer for a port scan, want 1:\n%s", n, h.log.String())
	}
}

// Idle connections take every slot; a rank gets in all the same, long before
// their hellos time out.
func TestDoorIdleStrangers(t *testing.T) {
	h := openHall(t, DoorConfig{Slots: 4, HelloTimeout: time.Hour})
	for range 12 {
		h.dial(t)
	}
	conn, me := h.dial(t), self(2)
	if _, err := Greet(conn, &me, Data, 0, soon()); err != nil {
		t.Fatalf("a rank among idle strangers: %v", err)
	}
	<-h.entered
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.slots) > 4 {
		t.Fatalf("%d connections hold slots, bound 4", len(h.slots))
	}
}

// failsOnce is a listener that has no descriptor for the first connection.
type failsOnce struct {
	net.Listener
	failed bool
}

func (l *failsOnce) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}

// heldUp is a log whose lines keep the door's lock longer than a first failure to accept is waited for.
type heldUp struct {
	slog.Handler
	door chan *Door
}

func (l heldUp) Handle(context.Context, slog.Record) error {
	d := <-l.door
	d.mu.Lock()
	time.AfterFunc(20*time.Millisecond, d.mu.Unlock)
	return nil
}

// The door accepts again after a failure, also where it comes to wait for a moment only when that is over.
func TestDoorAcceptsAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := heldUp{slog.NewTextHandler(io.Discard, nil), make(chan *Door, 1)}
	entered := make(chan entry, 1)
	d := OpenDoor(&failsOnce{Listener: listener}, DoorConfig{
		Self: known, Admit: func(Peer) Verdict { return Admitted },
		Enter: func(c net.Conn, p Peer) { entered <- entry{c, p} }, Log: slog.New(log), LogEvery: time.Hour,
	})
	defer d.Close()
	log.door <- d
	h := &hall{Door: d}
	me := self(2)
	if _, err := Greet(h.dial(t), &me, Data, 0, soon()); err != nil {
		t.Fatalf("a rank after a failure to accept: %v", err)
	}
	(<-entered).conn.Close()
}

func TestDoorVerdicts(t *testing.T) {
	verdict := Busy
	h := openHall(t, DoorConfig{Admit: func(Peer) Verdict { return verdict }})
	me := self(2)
	if _, err := Greet(h.dial(t), &me, Data, 0, soon()); !errors.Is(err, ErrBusy) {
		t.Fatalf("busy: %v", err)
	}
	verdict = Refused
	if _, err := Greet(h.dial(t), &me, Data, 0, soon()); !errors.Is(err, ErrRefused) {
		t.Fatalf("refused: %v", err)
	}
}

// A connection that has made room before the rank can say hello is waited with no longer, nor is one after Close.
func TestDoorGivesUpHellosThatWait(t *testing.T) {
	const slots, strangers = 4, 24
	waiting, over := make(chan struct{}, strangers), make(chan struct{}, strangers)
	h := openHall(t, DoorConfig{Slots: slots, LogEvery: time.Hour, Self: func(gone <-chan struct{}) (Self, bool) {
		waiting <- struct{}{}
		select {
		case <-gone:
			over <- struct{}{}
		case <-t.Context().Done(): // it has failed: let Close end
		}
		return Self{}, false
	}})
	await := func(what string, c <-chan struct{}, n int) {
		t.Helper()
		for i := range n {
			select {
			case <-c:
			case <-time.After(time.Until(soon())):
				t.Fatalf("%s: %d of %d", what, i, n)
			}
		}
	}
	for range strangers {
		h.dial(t).Close()
	}
	await("hellos that wait for the layout", waiting, strangers)
	await("those that have made room and wait no more", over, strangers-slots)
	h.settle(t, errMadeRoom.Error())
	if n := len(over); n > 0 {
		t.Errorf("%d of the last %d hellos have been given up although nobody needed room", n, slots)
	}
	h.Close()
	await("the others after Close", over, slots)
	h.Close() // once more does no harm
}

// Close ends hellos in progress at once.
func TestDoorClose(t *testing.T) {
	h := openHall(t, DoorConfig{HelloTimeout: time.Hour})
	conn := h.dial(t)
	conn.Write(magic[:])
	done := make(chan struct{})
	go func() { h.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Until(soon())):
		t.Fatal("Close waits for a stranger")
	}
}
