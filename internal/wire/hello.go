package wire

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The hello opens every connection between two ranks, before anything else is
// read from it. Four messages of fixed length, so that no length of a stranger's is
// ever believed:
//
//	dialer   -> acceptor  who I am, whom I want, what for, nonce
//	acceptor -> dialer    who I am, nonce, MAC("acceptor", both messages)
//	dialer   -> acceptor  MAC("dialer", both messages)
//	acceptor -> dialer    verdict
//
// Each MAC is HMAC-SHA256 under the job's secret over both nonces, both ranks,
// size, layout hash, purpose and the name job.step.restart, so a recorded hello is
// worth nothing on another connection and an older incarnation of the job is
// a stranger. What follows the hello is neither encrypted nor authenticated.

// Purpose says what a connection is for.
type Purpose uint8

const (
	Bootstrap Purpose = 1 // joining: cards, roster
	Tree      Purpose = 2 // heartbeats, losses, goodbyes
	Data      Purpose = 3 // messages of the tcp provider
)

func (p Purpose) String() string {
	switch p {
	case Bootstrap:
		return "bootstrap"
	case Tree:
		return "tree"
	case Data:
		return "data"
	}
	return fmt.Sprintf("purpose %d", uint8(p))
}

// Anyone is the peer rank of a dialer that does not know who listens.
const Anyone = -1

// Self is what this rank says of itself and what it proves it knows.
type Self struct {
	Secret     []byte // the job's, SecretBytes long
	Job        string // job.step.restart: other incarnations are strangers
	Rank, Size int
	Layout     [sha256.Size]byte // zero before the ranks have agreed on one
}

// Peer is the other side of an authenticated connection.
type Peer struct {
	Rank    int
	Purpose Purpose
}

// Verdict is the acceptor's answer to an authenticated dialer.
type Verdict uint8

const (
	Admitted Verdict = 1
	Busy     Verdict = 2 // not now: the two are connected, or the acceptor is connecting to the dialer, or about to leave
	Refused  Verdict = 3 // not wanted: gone, or another layout
)

var (
	// ErrStranger: the other side does not know the job's secret, or speaks another protocol.
	ErrStranger = errors.New("not of this job")
	// ErrBusy and ErrRefused are the acceptor's verdicts as the dialer sees them.
	ErrBusy    = errors.New("connection is being made from the other side, or the other side leaves")
	ErrRefused = errors.New("connection refused by the peer")
	// ErrLayoutHash: an authenticated peer runs with another layout.
	ErrLayoutHash = errors.New("peer has another layout")
)

const (
	nonceBytes = 32
	macBytes   = sha256.Size
	introBytes = 4 + 4 + 4 + 4 + 4 + sha256.Size + nonceBytes
)

var magic = [4]byte{'F', 'S', 'T', 1}

// intro is the message both sides introduce themselves with.
type intro struct {
	purpose    Purpose
	rank, size int32
	peer       int32
	layout     [sha256.Size]byte
	nonce      [nonceBytes]byte
}

func (m *intro) encode(dst []byte) []byte {
	dst = append(dst, magic[:]...)
	dst = append(dst, byte(m.purpose), 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(m.rank))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(m.size))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(m.peer))
	dst = append(dst, m.layout[:]...)
	return append(dst, m.nonce[:]...)
}

func decodeIntro(b []byte) (intro, error) {
	var m intro
	if len(b) != introBytes || [4]byte(b[:4]) != magic {
		return m, fmt.Errorf("%w: it does not speak Fisterra's protocol", ErrStranger)
	}
	m.purpose = Purpose(b[4])
	m.rank = int32(binary.LittleEndian.Uint32(b[8:]))
	m.size = int32(binary.LittleEndian.Uint32(b[12:]))
	m.peer = int32(binary.LittleEndian.Uint32(b[16:]))
	copy(m.layout[:], b[20:])
	copy(m.nonce[:], b[20+sha256.Size:])
	if m.purpose < Bootstrap || m.purpose > Data || m.size < 1 || m.rank < 0 || m.rank >= m.size ||
		m.peer < Anyone || m.peer >= m.size {
		return m, fmt.Errorf("%w: its hello has purpose %d, rank %d of %d, peer %d", ErrStranger, m.purpose, m.rank, m.size, m.peer)
	}
	return m, nil
}

// seal is the proof that one side knows the secret, bound to both introductions.
func seal(self *Self, role string, dialer, acceptor []byte) []byte {
	h := hmac.New(sha256.New, self.Secret)
	var length [8]byte
	for _, part := range [][]byte{[]byte("fisterra hello 1"), []byte(role), []byte(self.Job), dialer, acceptor} {
		binary.LittleEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write(part)
	}
	return h.Sum(nil)
}

func (s *Self) check() {
	if len(s.Secret) != SecretBytes {
		panic(fmt.Sprintf("wire: secret of %d bytes, must be %d", len(s.Secret), SecretBytes))
	}
}

func (s *Self) intro(purpose Purpose, peer int) intro {
	m := intro{purpose: purpose, rank: int32(s.Rank), size: int32(s.Size), peer: int32(peer), layout: s.Layout}
	if _, err := rand.Read(m.nonce[:]); err != nil {
		panic("wire: no random numbers: " + err.Error())
	}
	return m
}

// CloseOnEnd closes conn when ctx ends. To set a deadline then would not do: another, such as Greet's, might follow. stop
// undoes it, and reports false where it was too late.
func CloseOnEnd(ctx context.Context, conn net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { conn.Close() })
}

// Greet is the dialer's side of the hello on a fresh connection. peer is the
// rank that must answer, or Anyone. It blocks until the acceptor's verdict or the
// deadline and returns who answered. The connection stays the caller's, without
// a deadline, to close if err is not nil.
func Greet(conn net.Conn, self *Self, purpose Purpose, peer int, deadline time.Time) (Peer, error) {
	self.check()
	if err := conn.SetDeadline(deadline); err != nil {
		return Peer{}, err
	}
	mine := self.intro(purpose, peer)
	first := mine.encode(make([]byte, 0, introBytes))
	if _, err := conn.Write(first); err != nil {
		return Peer{}, fmt.Errorf("hello: %w", err)
	}
	answer := make([]byte, introBytes+macBytes)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return Peer{}, fmt.Errorf("hello: no answer: %w", err)
	}
	second, mac := answer[:introBytes], answer[introBytes:]
	theirs, err := decodeIntro(second)
	if err != nil {
		return Peer{}, err
	}
	if !hmac.Equal(mac, seal(self, "acceptor", first, second)) {
		return Peer{}, fmt.Errorf("%w: wrong secret, or another job.step.restart than %s", ErrStranger, self.Job)
	}
	if _, err := conn.Write(seal(self, "dialer", first, second)); err != nil {
		return Peer{}, fmt.Errorf("hello: %w", err)
	}
	var verdict [1]byte
	if _, err := io.ReadFull(conn, verdict[:]); err != nil {
		return Peer{}, fmt.Errorf("hello: no verdict: %w", err)
	}
	if err := agree(&mine, &theirs); err != nil {
		return Peer{}, err
	}
	if peer != Anyone && int(theirs.rank) != peer {
		return Peer{}, fmt.Errorf("%w: rank %d answers where rank %d was expected", ErrRefused, theirs.rank, peer)
	}
	switch Verdict(verdict[0]) {
	case Admitted:
		return Peer{Rank: int(theirs.rank), Purpose: purpose}, conn.SetDeadline(time.Time{})
	case Busy:
		return Peer{}, ErrBusy
	}
	return Peer{}, ErrRefused
}

// Welcome is the acceptor's side. admit is asked about a peer that has proved
// itself; it must not block. The connection stays the caller's.
func Welcome(conn net.Conn, self *Self, deadline time.Time, admit func(Peer) Verdict) (Peer, error) {
	self.check()
	if err := conn.SetDeadline(deadline); err != nil {
		return Peer{}, err
	}
	first := make([]byte, introBytes)
	// The magic alone first: whoever speaks another protocol is known after four bytes.
	if _, err := io.ReadFull(conn, first[:len(magic)]); err != nil {
		return Peer{}, fmt.Errorf("%w: no hello: %w", ErrStranger, err)
	}
	if [4]byte(first[:4]) != magic {
		return Peer{}, fmt.Errorf("%w: it does not speak Fisterra's protocol", ErrStranger)
	}
	if _, err := io.ReadFull(conn, first[len(magic):]); err != nil {
		return Peer{}, fmt.Errorf("%w: hello broken off: %w", ErrStranger, err)
	}
	theirs, err := decodeIntro(first)
	if err != nil {
		return Peer{}, err
	}
	mine := self.intro(theirs.purpose, int(theirs.rank)%self.Size)
	second := mine.encode(make([]byte, 0, introBytes+macBytes))
	if _, err := conn.Write(append(second, seal(self, "acceptor", first, second)...)); err != nil {
		return Peer{}, fmt.Errorf("hello: %w", err)
	}
	var mac [macBytes]byte
	if _, err := io.ReadFull(conn, mac[:]); err != nil {
		return Peer{}, fmt.Errorf("%w: no proof: %w", ErrStranger, err)
	}
	if !hmac.Equal(mac[:], seal(self, "dialer", first, second)) {
		return Peer{}, fmt.Errorf("%w: wrong secret, another job.step.restart, or a replay", ErrStranger)
	}
	peer := Peer{Rank: int(theirs.rank), Purpose: theirs.purpose}
	err = agree(&mine, &theirs)
	if err == nil && theirs.peer != Anyone && int(theirs.peer) != self.Rank {
		err = fmt.Errorf("%w: rank %d wants rank %d, this is rank %d", ErrRefused, theirs.rank, theirs.peer, self.Rank)
	}
	verdict := Refused
	if err == nil {
		verdict = admit(peer)
		switch verdict {
		case Busy:
			err = ErrBusy
		case Refused:
			err = ErrRefused
		}
	}
	if _, werr := conn.Write([]byte{byte(verdict)}); werr != nil && err == nil {
		return peer, fmt.Errorf("hello: %w", werr)
	}
	if err != nil {
		return peer, err
	}
	return peer, conn.SetDeadline(time.Time{})
}

// agree compares what two authenticated ranks of one job must have in common.
func agree(mine, theirs *intro) error {
	if mine.size != theirs.size {
		return fmt.Errorf("%w: rank %d says the job has %d ranks, rank %d says %d", ErrRefused, theirs.rank, theirs.size, mine.rank, mine.size)
	}
	if mine.layout != theirs.layout {
		return fmt.Errorf("%w: rank %d has %x, rank %d has %x", ErrLayoutHash, theirs.rank, theirs.layout[:4], mine.rank, mine.layout[:4])
	}
	return nil
}
