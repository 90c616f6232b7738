package shm

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Who is met, and with what rights, and who is turned away and told why: ranks of other jobs, users, hosts and
// namespaces. How a handshake goes wrong among ranks that belong together is in meet_test.go.

// TestOtherNamespaces: a peer in another pid namespace is met, but not copied from; addresses of other hosts and network
// namespaces are refused.
func TestOtherNamespaces(t *testing.T) {
	t.Run("pid", func(t *testing.T) {
		if os.Getuid() != 0 {
			need.Part(t, "root", "a pid namespace needs it")
		}
		r := openRank(t, 0, 2, nil)
		p := start(t, r, "echo", func(c *exec.Cmd) { c.SysProcAttr.Cloneflags = unix.CLONE_NEWPID })
		p.say(t, "100")
		r.mu.Lock()
		defer r.mu.Unlock()
		out, in := pattern(100, 3), make([]byte, 100)
		if err := r.send(1, out); err != nil {
			t.Fatal(err)
		}
		if err := r.recv(in); err != nil || !bytes.Equal(in, out) {
			t.Fatal(err, in)
		}
		if r.endpoint(1).vm {
			t.Errorf("long messages go by %q, although the peer does not see this process", r.Path(1))
		}
	})
	t.Run("net", func(t *testing.T) {
		r := openRank(t, 0, 2, nil)
		other := openRank(t, 1, 2, nil)
		a := other.address
		a.host.network++
		if err := r.Connect(1, a.encode()); err == nil || !strings.Contains(err.Error(), "network namespace") {
			t.Errorf("another network namespace: %v", err)
		}
		a = other.address
		a.host.boot[0]++
		if err := r.Connect(1, a.encode()); err == nil || !strings.Contains(err.Error(), "another host") {
			t.Errorf("another host: %v", err)
		}
		a = other.address
		a.name[0]++
		if err := r.Connect(1, a.encode()); err == nil || !strings.Contains(err.Error(), "no process") {
			t.Errorf("a resumed snapshot of this machine: %v", err)
		}
	})
}

// TestProbeOfAnotherProcess: what another process has at the place of a probe is left as it is.
func TestProbeOfAnotherProcess(t *testing.T) {
	mayCopy(t)
	p, err := newProbe()
	if err != nil {
		t.Fatal(err)
	}
	defer p.free()
	at := p.at()
	at.Hash[0]++
	if _, err := copyProbe(os.Getpid(), at); err == nil || p.mark[0].Load() != 0 || p.mark[1].Load() != 0 {
		t.Errorf("%v, and the mark is %x", err, p.mark[0].Load())
	}
}

// TestProbeOutlivesItsHandshake: a peer that was stopped on its way writes the mark when it goes on, after the handshake has failed.
// What it writes to is still nothing but the probe.
func TestProbeOutlivesItsHandshake(t *testing.T) {
	mayCopy(t)
	side, other := facing(t)
	failed := make(chan error, 1)
	go func() {
		_, err := side.dialler(1)
		failed <- err
	}()
	proof, err := other.asAcceptor()
	if err != nil {
		t.Fatal(err)
	}
	at := unpackProbe(proof[macBytes:])
	other.conn.Close()
	if err := <-failed; err == nil {
		t.Fatal("the handshake has not failed")
	}
	side.probe = nil
	var others []*[4]uint64
	for range 5 {
		runtime.GC()
		for range 100_000 {
			others = append(others, new([4]uint64))
		}
	}
	if _, err := copyProbe(os.Getpid(), at); err != nil {
		t.Errorf("the probe is gone: %v", err)
	}
	for _, o := range others {
		if *o != ([4]uint64{}) {
			t.Fatalf("something else was overwritten: %x", *o)
		}
	}
}

// TestStrangers are turned away: another secret, another job.
func TestStrangers(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"secret": func(c *Config) { c.Secret = bytes.Repeat([]byte{1}, 32) },
		"job":    func(c *Config) { c.Job = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			a := openRank(t, 0, 2, nil)
			b := openRank(t, 1, 2, change)
			if err := a.Connect(1, b.Address()); err != nil {
				t.Fatal(err)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.Send(1, &transport.Header{Kind: kindEager}, nil)
			if err := a.until(func() bool { return len(a.lost) > 0 }); err != nil {
				t.Fatal(err)
			}
			t.Log(a.lost[1])
		})
	}
}

// TestRefusedForAFault: who is refused because the other could not connect is told why it could not.
func TestRefusedForAFault(t *testing.T) {
	stranger := openRank(t, 0, 2, func(c *Config) { c.Secret = bytes.Repeat([]byte{1}, 32) })
	dialler, refuser := openRank(t, 0, 2, nil), openRank(t, 1, 2, nil)
	lose := func(r *testRank, peer int, at *testRank) error {
		t.Helper()
		if err := r.Connect(peer, at.Address()); err != nil {
			t.Fatal(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.Send(peer, &transport.Header{Kind: kindEager}, nil)
		if err := r.until(func() bool { return len(r.lost) > 0 }); err != nil {
			t.Fatal(err)
		}
		return r.lost[peer]
	}
	fault := errors.Unwrap(lose(refuser, 0, stranger))
	if got := lose(dialler, 1, refuser); !strings.HasSuffix(got.Error(), fault.Error()) {
		t.Errorf("it was told %q, want a reason: %q", got, fault)
	}
}

// TestAnotherUser is turned away at a rank's door, which any process of the machine can dial, also one that knows the secret.
func TestAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		need.Part(t, "root", "another user's process can be started only by root")
	}
	for uid, want := range map[uint32]string{0: "let in", 65534: "turned away"} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			r := openRank(t, 0, 2, nil)
			p, _ := begin(t, r, "knock", func(c *exec.Cmd) {
				c.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
			})
			door := r.address
			door.host.uid = uid // else it would not dial
			p.say(t, hex.EncodeToString(door.encode()))
			if got := p.line(t); got != want {
				t.Errorf("it was %s, want %s", got, want)
			}
		})
	}
}

// partKnock does all that a rank does to be let in at rank 0, and says whether it was. It does not look who is at the other end.
func partKnock(r *testRank, _ *bufio.Reader) error {
	deadline := time.Now().Add(patience)
	conn, err := r.reach(r.meetings.addresses[0], deadline)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(deadline)
	segment, err := CreateSegment("fisterra-pair", pairBytes, baseBytes, OrdinaryPages)
	if err != nil {
		return err
	}
	defer unix.Close(segment)
	p := &party{conn: conn, cfg: &r.cfg, bell: r.bell, habit: r.habit}
	proof, err := p.asDialler(0)
	if err == nil {
		err = p.write(proof, segment, r.bell.memory, r.bell.bell)
	}
	var open []byte
	if err == nil {
		var fds []int
		open, fds, err = p.read(2)
		closeAll(fds)
	}
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET):
		fmt.Println("turned away")
	case err != nil:
		return err
	case open[0] == statusWelcome:
		fmt.Println("let in")
	default:
		fmt.Printf("answered %q\n", open)
	}
	return nil
}
