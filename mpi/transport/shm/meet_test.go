package shm

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// facing is a rank's side of a handshake, and one of another rank that a test speaks for.
func facing(t *testing.T) (side, other *party) {
	t.Helper()
	mine, theirs := socketPair(t)
	of := func(r *testRank, conn *net.UnixConn) *party {
		return &party{conn: conn, cfg: &r.cfg, bell: r.bell, habit: r.habit}
	}
	return of(openRank(t, 0, 2, nil), mine), of(openRank(t, 1, 2, nil), theirs)
}

func admitAll(int) error { return nil }

// asDialler speaks up to the proof, which it returns.
func (p *party) asDialler(to int) (proof []byte, err error) {
	p.own = p.hello(to)
	if err := p.write(pack(p.own)); err != nil {
		return nil, err
	}
	answer, _, err := p.read(0)
	if err != nil {
		return nil, err
	}
	if p.peer, err = unpackHello(answer[1 : 1+helloBytes]); err != nil {
		return nil, err
	}
	return append(p.mac("dialler", p.own, p.peer), pack(probeAt{})...), nil
}

// asAcceptor speaks up to the proof, which it returns, without the descriptors that come.
func (p *party) asAcceptor() (proof []byte, err error) {
	first, _, err := p.read(0)
	if err != nil {
		return nil, err
	}
	if p.peer, err = unpackHello(first); err != nil {
		return nil, err
	}
	p.own = p.hello(int(p.peer.From))
	answer := append([]byte{statusWelcome}, pack(p.own)...)
	if err := p.write(append(answer, p.mac("acceptor", p.peer, p.own)...)); err != nil {
		return nil, err
	}
	proof, fds, err := p.read(3)
	closeAll(fds)
	return proof, err
}

// welcome is the packet of an acceptor that can copy nothing.
func welcome() []byte {
	open := append([]byte{statusWelcome}, pack(probeAt{})...)
	return append(open, make([]byte, 16)...)
}

// TestMeetWithoutDescriptor: a rank that may not open what its peer shares says so, to the peer, too, if that waits for it.
func TestMeetWithoutDescriptor(t *testing.T) {
	t.Run("acceptor", func(t *testing.T) {
		side, other := facing(t)
		var refusal []byte
		said := make(chan error, 1)
		err := withDescriptors(0, func() error {
			go func() {
				proof, err := other.asDialler(0)
				if err == nil {
					err = other.write(proof, other.bell.memory, other.bell.memory, other.bell.bell)
				}
				if err == nil {
					refusal, _, err = other.read(2)
				}
				said <- err
			}()
			_, err := side.acceptor(admitAll)
			return errors.Join(err, <-said)
		})
		if !errors.Is(err, errNoDescriptor) {
			t.Errorf("the handshake ends with %v, want %v", err, errNoDescriptor)
		}
		if len(refusal) == 0 || refusal[0] != statusRefused || !strings.Contains(string(refusal), errNoDescriptor.Error()) {
			t.Errorf("the dialler is told %q", refusal)
		}
	})
	t.Run("dialler", func(t *testing.T) {
		side, other := facing(t)
		said := make(chan error, 1)
		err := withDescriptors(1, func() error { // for the segment
			go func() {
				_, err := other.asAcceptor()
				if err == nil {
					err = other.write(welcome(), other.bell.memory, other.bell.bell)
				}
				said <- err
			}()
			_, err := side.dialler(1)
			return errors.Join(err, <-said)
		})
		if !errors.Is(err, errNoDescriptor) {
			t.Errorf("the handshake ends with %v, want %v", err, errNoDescriptor)
		}
	})
}

// openDescriptors counts what this process has open.
func openDescriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// TestUnwantedDescriptors: what comes with packets that bring none is closed.
func TestUnwantedDescriptors(t *testing.T) {
	for name, speak := range map[string]func(side, other *party, fds []int) error{
		"hello": func(side, other *party, fds []int) error {
			err := other.write(pack(other.hello(0)), fds...)
			other.conn.CloseWrite()
			_, ended := side.acceptor(admitAll)
			return errors.Join(err, wanted(ended))
		},
		"answer": func(side, other *party, fds []int) error {
			err := other.write([]byte{statusRefused, '.'}, fds...)
			_, ended := side.dialler(1)
			return errors.Join(err, wanted(ended))
		},
		"crossed": func(side, other *party, fds []int) error {
			said := make(chan error, 1)
			go func() {
				_, err := other.asAcceptor()
				if err == nil {
					err = other.write([]byte{statusCrossed}, fds[:2]...)
				}
				said <- err
			}()
			_, ended := side.dialler(1)
			return errors.Join(<-said, wanted(ended))
		},
	} {
		t.Run(name, func(t *testing.T) {
			side, other := facing(t)
			var fds []int
			for range maxFDs {
				fd, err := unix.MemfdCreate("fisterra-unwanted", unix.MFD_CLOEXEC)
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				fds = append(fds, fd)
			}
			before := openDescriptors(t)
			if err := speak(side, other, fds); err != nil {
				t.Fatal(err)
			}
			if after := openDescriptors(t); after >= before { // the socket of the side is closed
				t.Errorf("%d descriptors before the handshake, %d after it", before, after)
			}
		})
	}
}

// wanted is nil for a handshake that has failed.
func wanted(ended error) error {
	if ended == nil {
		return errors.New("the handshake has succeeded")
	}
	return nil
}
