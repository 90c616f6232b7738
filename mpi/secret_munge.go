package mpi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// MUNGE vouches for the uid of a process on any node of a cluster. Its daemon
// is asked over a local socket: a header (magic, version, type, retry,
// length of the body; big endian) and a body, one request per connection. The layout was
// read off the conversations of munge(1) and unmunge(1) 0.5.15.

const (
	mungeMagic       = 0x00606d4b
	mungeVersion     = 4
	mungeEncode      = 2
	mungeEncoded     = 3
	mungeDecode      = 4
	mungeDecoded     = 5
	mungeHeadBytes   = 11
	mungeMaxBytes    = 64 << 10
	mungeCredTime    = 60 // seconds a credential lives
	mungeAnyGroup    = 0xffffffff
	mungeWait        = 5 * time.Second       // for an answer, also of a daemon that is busy
	mungePause       = 50 * time.Millisecond // at least, and twice as much at most, before a busy one is asked again
	mungeRetries     = 5                     // at most, as the daemon counts them
	mungeDefaultPath = "/run/munge/munge.socket.2"
)

// munge is the daemon behind a socket.
type munge struct{ socket string }

// findMunge returns the first munge daemon that answers, and where it was
// looked for if none does. The site may have put its socket elsewhere: then slurm.conf
// says where (AuthInfo=socket=PATH).
func findMunge(ctx context.Context, lookup func(string) (string, bool)) (*munge, error) {
	var places []string
	if conf, ok := lookup("SLURM_CONF"); ok {
		if socket := mungeSocketOf(conf); socket != "" {
			places = append(places, socket)
		}
	}
	places = append(places, mungeDefaultPath, "/var/run/munge/munge.socket.2")
	var tried []string
	for _, place := range places {
		m := &munge{socket: place}
		if _, err := m.encode(ctx, nil); err != nil {
			tried = append(tried, fmt.Sprintf("%s: %v", place, err))
			continue
		}
		return m, nil
	}
	return nil, fmt.Errorf("munge does not answer: %s", strings.Join(tried, "; "))
}

// mungeSocketOf reads the socket's path from slurm.conf; "" if it is not there.
func mungeSocketOf(conf string) string {
	text, err := os.ReadFile(conf) // whole: a list of nodes may be a long line
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ := strings.Cut(line, "#")
		key, value, ok := strings.Cut(line, "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(key), "AuthInfo") {
			continue
		}
		for option := range strings.SplitSeq(strings.Trim(strings.TrimSpace(value), `"`), ",") {
			if path, ok := strings.CutPrefix(strings.TrimSpace(option), "socket="); ok {
				return path
			}
		}
	}
	return ""
}

// encode makes a credential that vouches for this process's uid and for
// payload, and that only the same uid can decode.
func (m *munge) encode(ctx context.Context, payload []byte) ([]byte, error) {
	body := []byte{1, 1, 1, 0} // the daemon's defaults of cipher, MAC and compression; no realm
	be := binary.BigEndian
	body = be.AppendUint32(body, mungeCredTime)
	body = be.AppendUint32(body, uint32(os.Getuid()))
	body = be.AppendUint32(body, mungeAnyGroup)
	body = be.AppendUint32(body, uint32(len(payload)))
	answer, err := m.ask(ctx, mungeEncode, mungeEncoded, append(body, payload...))
	if err != nil {
		return nil, err
	}
	r := mungeReader{b: answer}
	if err := r.status(); err != nil {
		return nil, err
	}
	cred := r.bytes(int(r.uint32()))
	if r.short {
		return nil, errMungeShort
	}
	return cred, nil
}

// decode checks a credential and returns who made it and what it vouches for.
func (m *munge) decode(ctx context.Context, cred []byte) (uid int, payload []byte, err error) {
	body := binary.BigEndian.AppendUint32(nil, uint32(len(cred)))
	answer, err := m.ask(ctx, mungeDecode, mungeDecoded, append(body, cred...))
	if err != nil {
		return 0, nil, err
	}
	r := mungeReader{b: answer}
	if err := r.status(); err != nil {
		return 0, nil, err
	}
	r.bytes(3)              // cipher, MAC, compression
	r.bytes(int(r.uint8())) // realm
	r.uint32()              // time to live
	r.bytes(int(r.uint8())) // address of the encoding host
	r.bytes(8)              // times of encoding and decoding
	uid = int(r.uint32())   // of the encoding process
	r.bytes(4 + 8)          // its gid, and who may decode
	payload = r.bytes(int(r.uint32()))
	if r.short {
		return 0, nil, errMungeShort
	}
	return uid, payload, nil
}

var errMungeShort = errors.New("munge: the answer is too short")

// ask has the daemon do something. All ranks of a host ask it at the same moment, and one that finds the socket's
// queue full is turned away by the kernel at once: so a daemon that is busy is asked again.
func (m *munge) ask(ctx context.Context, request, answer byte, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, mungeWait)
	defer cancel()
	var busy error
	for retry := byte(0); ; retry = min(retry+1, mungeRetries) {
		got, err := m.askOnce(ctx, request, answer, retry, body)
		switch {
		case err == nil:
			return got, nil
		case mungeIsBusy(err):
			busy = err
		case busy != nil && timedOut(err): // in the middle of an attempt: tell what the time went to
			return nil, busy
		default:
			return nil, err
		}
		if !waited(ctx, mungePause+rand.N(mungePause)) { // not all ranks at once again
			return nil, busy
		}
	}
}

// timedOut reports whether a connection's deadline has passed.
func timedOut(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// mungeIsBusy reports whether an attempt failed for want of a place in the daemon's queue, or was dropped by the daemon.
// A socket that is not there, or that nobody listens on, is not busy.
func mungeIsBusy(err error) bool {
	return slices.ContainsFunc([]error{syscall.EAGAIN, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF},
		func(busy error) bool { return errors.Is(err, busy) })
}

// askOnce makes one attempt, and tells the daemon its number: else the daemon would take a credential that it is shown again
// for a stolen one.
func (m *munge) askOnce(ctx context.Context, request, answer, retry byte, body []byte) ([]byte, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", m.socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	be := binary.BigEndian
	msg := be.AppendUint32(nil, mungeMagic)
	msg = append(msg, mungeVersion, request, retry)
	msg = be.AppendUint32(msg, uint32(len(body)))
	if _, err := conn.Write(append(msg, body...)); err != nil {
		return nil, err
	}
	var head [mungeHeadBytes]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	length := be.Uint32(head[7:])
	if be.Uint32(head[:]) != mungeMagic || head[4] != mungeVersion || head[5] != answer || length > mungeMaxBytes {
		return nil, fmt.Errorf("munge: unexpected answer %x", head)
	}
	got := make([]byte, length)
	_, err = io.ReadFull(conn, got)
	return got, err
}

// mungeReader takes an answer apart and remembers that it ended too early.
type mungeReader struct {
	b     []byte
	short bool
}

func (r *mungeReader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.short = true
		return make([]byte, 0)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *mungeReader) uint8() byte {
	if b := r.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *mungeReader) uint32() uint32 {
	if b := r.bytes(4); len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// status reads the error that every answer begins with.
func (r *mungeReader) status() error {
	code := r.uint8()
	text := r.bytes(int(r.uint8()))
	if code != 0 {
		return fmt.Errorf("munge: error %d: %s", code, strings.TrimRight(string(text), "\x00"))
	}
	return nil
}
