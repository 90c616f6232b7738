package shm

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two ranks of a pair prove to each other that they belong to the job, that
// they run as the same user, and whether each can copy the other's memory.
// Everything travels in packets (SOCK_SEQPACKET), dialler first:
//
//	hello   magic, version, from, to, size, restart, job, nonce
//	answer  status; the same, or why not; MAC over both hellos
//	proof   MAC over both hellos; probe; the pair's segment, board, bell
//	open    probe, what the acceptor read of the dialler's; board, bell
//	read    what the dialler read of the acceptor's, whether it was read and written itself
//	ready   whether the acceptor was read and written

const (
	helloMagic   = "fisterra-shm"
	helloVersion = 3
)

// errCrossed: the peer is dialling this rank, which is to wait for it.
var errCrossed = errors.New("crossed")

type hello struct {
	Magic    [12]byte
	Version  uint16
	From, To uint32
	Size     uint32
	Restart  uint32
	Job      [32]byte
	Nonce    [32]byte
}

const (
	statusWelcome byte = iota
	statusCrossed
	statusRefused // the reason follows
)

var helloBytes = binary.Size(hello{})

// party is one side of a handshake.
type party struct {
	conn      *net.UnixConn
	cfg       *Config
	bell      *doorbell
	habit     habit
	own, peer hello
	cred      *unix.Ucred
	probe     *probe
}

func (p *party) hello(to int) hello {
	h := hello{Version: helloVersion, From: uint32(p.cfg.Rank), To: uint32(to), Size: uint32(p.cfg.Size),
		Restart: uint32(p.cfg.Restart), Job: sha256.Sum256([]byte(p.cfg.Job))}
	copy(h.Magic[:], helloMagic)
	rand.Read(h.Nonce[:])
	return h
}

func pack(v any) []byte {
	b, err := binary.Append(nil, binary.BigEndian, v)
	if err != nil {
		panic(err)
	}
	return b
}

func unpackHello(b []byte) (h hello, err error) {
	if len(b) != helloBytes {
		return h, fmt.Errorf("a hello of %d bytes instead of %d", len(b), helloBytes)
	}
	_, err = binary.Decode(b, binary.BigEndian, &h)
	if err == nil && (string(h.Magic[:]) != helloMagic || h.Version != helloVersion) {
		err = fmt.Errorf("it speaks %q version %d, not %q version %d", h.Magic, h.Version, helloMagic, helloVersion)
	}
	return h, err
}

// mac proves knowledge of the job's secret, for this pair of hellos only.
func (p *party) mac(role string, dialler, acceptor hello) []byte {
	m := hmac.New(sha256.New, p.cfg.Secret)
	m.Write([]byte("fisterra shm " + role))
	m.Write(pack(dialler))
	m.Write(pack(acceptor))
	return m.Sum(nil)
}

// check compares the peer's hello with this rank's.
func (p *party) check() error {
	a, b := p.own, p.peer
	switch {
	case b.To != a.From:
		return fmt.Errorf("rank %d looks for rank %d, this is rank %d", b.From, b.To, a.From)
	case b.From >= a.Size || b.From == a.From || b.Size != a.Size:
		return fmt.Errorf("rank %d of %d does not belong to a job of %d ranks", b.From, b.Size, a.Size)
	case b.Job != a.Job || b.Restart != a.Restart:
		return fmt.Errorf("rank %d belongs to another job, or to restart %d of this one, here %d", b.From, b.Restart, a.Restart)
	}
	return nil
}

// sameUser asks the kernel who is at the other end.
func (p *party) sameUser() error {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sys error
	if err := raw.Control(func(fd uintptr) {
		p.cred, sys = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if sys != nil {
		return fmt.Errorf("asking who is at the other end: %w", sys)
	}
	if uid := unix.Getuid(); int(p.cred.Uid) != uid {
		return fmt.Errorf("the process at the other end runs as uid %d, this one as %d", p.cred.Uid, uid)
	}
	return nil
}

// probe finds out whether another process can copy to and from this one. It lies in a mapping of its own, which is unmapped
// only when the peer has said that it is done: a peer that was stopped midway writes the mark when it goes on, perhaps long
// after the handshake has failed.
type probe struct {
	secret [2]uint64
	mark   [2]atomic.Uint64 // the peer copies the secret here
}

// probeAt is what the peer gets to know of a probe. By the hash the peer makes sure, before it writes, that it has found the
// right process.
type probeAt struct {
	Secret, Mark uint64
	Hash         [32]byte
}

func newProbe() (*probe, error) {
	page, err := unix.MmapPtr(-1, 0, nil, unsafe.Sizeof(probe{}), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("no memory for a handshake: %w", err)
	}
	p := (*probe)(page)
	var b [16]byte
	rand.Read(b[:])
	p.secret = [2]uint64{binary.NativeEndian.Uint64(b[:8]), binary.NativeEndian.Uint64(b[8:])}
	return p, nil
}

// free gives the memory back, which the peer writes to no more.
func (p *probe) free() { _ = unix.MunmapPtr(unsafe.Pointer(p), unsafe.Sizeof(*p)) }

func (p *probe) bytes() []byte {
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, p.secret[0]), p.secret[1])
}

func (p *probe) at() probeAt {
	return probeAt{
		Secret: uint64(uintptr(unsafe.Pointer(&p.secret))), Mark: uint64(uintptr(unsafe.Pointer(&p.mark))),
		Hash: sha256.Sum256(p.bytes()),
	}
}

// passed reports whether the peer could read the secret and write the mark.
func (p *probe) passed(got []byte) bool {
	return bytes.Equal(got, p.bytes()) && p.mark[0].Load() == p.secret[0] && p.mark[1].Load() == p.secret[1]
}

// copyProbe copies a peer's secret to its mark. It returns zeros if it cannot.
func copyProbe(pid int, at probeAt) (got [16]byte, err error) {
	if pid <= 0 {
		return got, errors.New("its process is not visible from this one's pid namespace")
	}
	c := newCopier()
	c.pid, c.local, c.remote = pid, got[:], uintptr(at.Secret)
	if c.copy(); c.err != nil {
		return [16]byte{}, c.err
	}
	if sha256.Sum256(got[:]) != at.Hash {
		return [16]byte{}, fmt.Errorf("process %d is another one", pid)
	}
	c.write, c.remote = true, uintptr(at.Mark)
	c.copy()
	return got, c.err
}
