package shm

import (
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	macBytes  = 32
	maxPacket = 1024
	maxFDs    = 3
)

var probeAtBytes = binary.Size(probeAt{})

// dialler runs the handshake of the rank that connects to rank to.
func (p *party) dialler(to int) (l *link, err error) {
	l = newLink(p.conn)
	shared := l // l is nil at a failed return
	defer func() {
		if err != nil {
			shared.close()
		}
	}()
	if err := p.sameUser(); err != nil {
		return nil, err
	}
	p.own = p.hello(to)
	if err := p.write(pack(p.own)); err != nil {
		return nil, err
	}
	answer, _, err := p.read(0)
	if err != nil {
		return nil, err
	}
	switch {
	case len(answer) == 1+helloBytes+macBytes && answer[0] == statusWelcome:
	case len(answer) > 1 && answer[0] == statusRefused:
		return nil, fmt.Errorf("it refused: %s", answer[1:])
	default:
		return nil, fmt.Errorf("an answer of %d bytes: %w", len(answer), errMalformed)
	}
	if p.peer, err = unpackHello(answer[1 : 1+helloBytes]); err != nil {
		return nil, err
	}
	if !hmac.Equal(answer[1+helloBytes:], p.mac("acceptor", p.own, p.peer)) {
		return nil, errors.New("it does not know the job's secret")
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	if l.memory, err = CreateSegment("fisterra-pair", pairBytes, baseBytes, OrdinaryPages); err != nil {
		return nil, err
	}
	if l.mem, err = mapSegment(l.memory, pairBytes); err != nil {
		return nil, err
	}
	if p.probe, err = newProbe(); err != nil {
		return nil, err
	}
	proof := append(p.mac("dialler", p.own, p.peer), pack(p.probe.at())...)
	if err := p.write(proof, l.memory, p.bell.memory, p.bell.bell); err != nil {
		return nil, err
	}

	open, fds, err := p.read(2)
	if err != nil {
		return nil, err
	}
	welcome := len(open) == 1+probeAtBytes+16 && open[0] == statusWelcome
	if !welcome || len(fds) < 2 {
		closeAll(fds)
	}
	switch {
	case welcome && len(fds) < 2:
		return nil, fmt.Errorf("%d of its board and bell: %w", len(fds), errNoDescriptor)
	case welcome:
	case len(open) == 1 && open[0] == statusCrossed:
		return nil, errCrossed
	case len(open) > 1 && open[0] == statusRefused:
		return nil, fmt.Errorf("it refused: %s", open[1:])
	default:
		return nil, fmt.Errorf("an answer of %d bytes to the proof: %w", len(open), errMalformed)
	}
	if err := l.adopt(fds[0], fds[1]); err != nil {
		return nil, err
	}
	works := p.probe.passed(open[1+probeAtBytes:])
	p.probe.free()
	got, why := copyProbe(int(p.cred.Pid), unpackProbe(open[1:]))
	if err := p.write(append(got[:], flag(works))); err != nil {
		return nil, err
	}
	ready, _, err := p.read(0)
	if err != nil {
		return nil, err
	}
	if len(ready) != 1 {
		return nil, fmt.Errorf("%d bytes at the end of the handshake: %w", len(ready), errMalformed)
	}
	l.judge(p, works, ready[0] == 1, why)
	return l, nil
}

// acceptor runs the handshake of the rank that was connected to. Once the
// dialler has proved who it is and before anything is shared, admit decides.
func (p *party) acceptor(admit func(rank int) error) (l *link, err error) {
	l = newLink(p.conn)
	shared := l // l is nil at a failed return
	defer func() {
		if err != nil {
			shared.close()
		}
	}()
	if err := p.sameUser(); err != nil {
		return nil, err
	}
	first, _, err := p.read(0)
	if err != nil {
		return nil, err
	}
	if p.peer, err = unpackHello(first); err != nil {
		return nil, err
	}
	p.own = p.hello(int(p.peer.From))
	if err := p.check(); err != nil {
		p.refuse(err)
		return nil, err
	}
	answer := append([]byte{statusWelcome}, pack(p.own)...)
	if err := p.write(append(answer, p.mac("acceptor", p.peer, p.own)...)); err != nil {
		return nil, err
	}
	proof, fds, err := p.read(3)
	if err != nil {
		return nil, err
	}
	if len(proof) != macBytes+probeAtBytes {
		closeAll(fds)
		return nil, fmt.Errorf("%d bytes instead of its proof: %w", len(proof), errMalformed)
	}
	if len(fds) < 3 {
		closeAll(fds)
		err := fmt.Errorf("rank %d, %d of segment, board and bell: %w", p.cfg.Rank, len(fds), errNoDescriptor)
		p.refuse(err)
		return nil, err
	}
	l.memory = fds[0]
	if err := l.adopt(fds[1], fds[2]); err != nil {
		return nil, err
	}
	if !hmac.Equal(proof[:macBytes], p.mac("dialler", p.peer, p.own)) {
		return nil, errors.New("it does not know the job's secret")
	}
	if err := admit(int(p.peer.From)); err != nil {
		if errors.Is(err, errCrossed) {
			p.write([]byte{statusCrossed})
		} else {
			p.refuse(err)
		}
		return nil, err
	}
	if l.mem, err = mapSegment(l.memory, pairBytes); err != nil {
		p.refuse(err)
		return nil, err
	}

	if p.probe, err = newProbe(); err != nil {
		p.refuse(err)
		return nil, err
	}
	got, why := copyProbe(int(p.cred.Pid), unpackProbe(proof[macBytes:]))
	open := append([]byte{statusWelcome}, pack(p.probe.at())...)
	if err := p.write(append(open, got[:]...), p.bell.memory, p.bell.bell); err != nil {
		return nil, err
	}
	read, _, err := p.read(0)
	if err != nil {
		return nil, err
	}
	if len(read) != 17 {
		return nil, fmt.Errorf("%d bytes instead of what it read: %w", len(read), errMalformed)
	}
	works := p.probe.passed(read[:16])
	p.probe.free()
	if err := p.write([]byte{flag(works)}); err != nil {
		return nil, err
	}
	l.judge(p, works, read[16] == 1, why)
	return l, nil
}

// adopt takes the peer's board and bell.
func (l *link) adopt(memory, bell int) (err error) {
	l.bell = bell
	l.board, err = mapSegment(memory, boardBytes)
	unix.Close(memory)
	return err
}

// judge decides how large messages go.
func (l *link) judge(p *party, theirs, mine bool, why error) {
	l.pid = int(p.cred.Pid)
	l.vm = theirs && mine && p.cfg.Copies != 2
	const mapped = "one copy where memory is mapped, else "
	switch {
	case p.cfg.Copies == 2:
		l.path = "two copies through a ring, as configured"
	case l.vm && p.habit.paced:
		l.path = mapped + "two through a ring, or one by the kernel where that is quicker"
	case l.vm:
		l.path = mapped + "one by process_vm_readv and process_vm_writev of both ranks"
	case why != nil:
		l.path = mapped + "two through a ring: " + why.Error()
	default:
		l.path = mapped + "two through a ring: the peer may not copy this process's memory"
	}
}

func unpackProbe(b []byte) (at probeAt) {
	binary.Decode(b[:probeAtBytes], binary.BigEndian, &at)
	return at
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// write sends a packet. Where the user has too many descriptors in flight (sent by any of the user's processes, and not yet
// received), it tries again until the deadline of the socket.
func (p *party) write(b []byte, fds ...int) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 10*time.Millisecond) {
		err := writePacket(p.conn, b, fds...)
		if !errors.Is(err, unix.ETOOMANYREFS) {
			return err
		}
		p.cfg.Log.Debug("shm: descriptors for a peer cannot be sent yet", "err", err)
		<-time.After(pause)
	}
}

// refuse tells the dialler why not.
func (p *party) refuse(why error) { p.write(append([]byte{statusRefused}, why.Error()...)) }

// read takes a packet with no more descriptors than most, which become the caller's. There are fewer where this process may
// open no more: the kernel leaves them out.
func (p *party) read(most int) ([]byte, []int, error) {
	b, fds, err := readPacket(p.conn, make([]byte, maxPacket))
	if len(fds) > most {
		closeAll(fds)
		return nil, nil, fmt.Errorf("%d descriptors with a packet of %d bytes: %w", len(fds), len(b), errMalformed)
	}
	return b, fds, err
}

// writePacket sends one packet and the descriptors with it.
func writePacket(conn *net.UnixConn, b []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err := conn.WriteMsgUnix(b, rights, nil)
	return err
}

// sendPacket is writePacket that does not wait: EAGAIN where the socket is full.
func sendPacket(conn *net.UnixConn, b []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var sys error
	if err := raw.Control(func(fd uintptr) {
		sys = unix.Sendmsg(int(fd), b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}); err != nil {
		return err
	}
	return sys
}

// readPacket reads one packet into buf and the descriptors with it, which are
// the caller's.
func readPacket(conn *net.UnixConn, buf []byte) ([]byte, []int, error) {
	rights := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, rn, _, _, err := conn.ReadMsgUnix(buf, rights)
	var fds []int
	if messages, e := unix.ParseSocketControlMessage(rights[:rn]); e == nil {
		for _, m := range messages {
			if got, e := unix.ParseUnixRights(&m); e == nil {
				fds = append(fds, got...)
			}
		}
	}
	if err != nil {
		closeAll(fds)
		return nil, nil, err
	}
	return buf[:n], fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
