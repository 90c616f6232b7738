package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// After the handshake a pair's socket carries the descriptors of segments that
// one rank exports and the other imports, and its end is the peer's.
//
//	ask       'a', number of the question, handle
//	answer    'm', number of the question, size; the segment
//	          'n', number of the question, why not
//	offer     'o', number of a segment, size; the segment, for messages (mapped.go)
//	taken     't', number of a segment that has been mapped for them
//	withdraw  'w', number of a segment that was offered

const (
	packetAsk  = 'a'
	packetMap  = 'm'
	packetNone = 'n'

	packetOffer    = 'o'
	packetTaken    = 't'
	packetWithdraw = 'w'

	packetHead = 1 + 8
)

// A handle names an exported segment of a rank.
const handleBytes = 8

type exports struct {
	areas    atomic.Pointer[areas] // of the segments
	mu       sync.Mutex
	next     uint64
	segments map[uint64]export
	asked    map[uint64]chan imported
	question uint64
}

type export struct {
	fd  int
	mem []byte
}

// errNoDescriptor: the kernel leaves out descriptors beyond what this process may have open.
var errNoDescriptor = errors.New("this process has no descriptor left for it (check ulimit -n)")

type imported struct {
	fd   int
	size uint64
	err  error
}

// Export lets peers map a segment, which this rank has mapped as mem.
func (p *Provider) Export(fd int, mem []byte) (handle []byte, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("shm: export descriptor %d: %w", fd, err)
	}
	if len(mem) == 0 || st.Size != int64(len(mem)) {
		return nil, fmt.Errorf("shm: export %d bytes of a segment of %d", len(mem), st.Size)
	}
	x := &p.exports
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.segments == nil {
		return nil, fmt.Errorf("shm: export descriptor %d: %w", fd, errClosed)
	}
	x.next++
	x.segments[x.next] = export{fd, mem}
	x.areas.Store(x.areas.Load().with(areaOf(mem, x.next)))
	return binary.BigEndian.AppendUint64(nil, x.next), nil
}

// Unexport ends an export. Peers that have imported the segment keep it.
func (p *Provider) Unexport(handle []byte) {
	if len(handle) != handleBytes {
		return
	}
	number := binary.BigEndian.Uint64(handle)
	if !p.exports.remove(number) {
		return
	}
	p.meetings.mu.Lock()
	defer p.meetings.mu.Unlock()
	for _, t := range p.meetings.byRank {
		if t.link != nil {
			t.link.withdraw(number)
		}
	}
}

// remove ends the sending and offering of a segment, and reports whether there was one.
func (x *exports) remove(number uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.segments[number]
	if !ok {
		return false
	}
	delete(x.segments, number)
	x.areas.Store(x.areas.Load().without(areaOf(e.mem, number)))
	return true
}

// Import maps a segment that a peer exports. It waits for the peer's answer, until ctx ends
// or HandshakeTimeout has passed. The mapping is the caller's to unmap.
func (p *Provider) Import(ctx context.Context, peer int, handle []byte) ([]byte, error) {
	mem, err := p.importFrom(ctx, peer, handle)
	if err != nil && p.ctx.Err() != nil { // whatever error Close has led to here
		err = errClosed
	}
	if err != nil {
		return nil, fmt.Errorf("shm: mapping memory of rank %d: %w", peer, err)
	}
	return mem, nil
}

func (p *Provider) importFrom(ctx context.Context, peer int, handle []byte) ([]byte, error) {
	if len(handle) != handleBytes {
		return nil, fmt.Errorf("a handle has %d bytes, this one %d", handleBytes, len(handle))
	}
	patience := p.cfg.HandshakeTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%v are over: %w", patience, context.DeadlineExceeded))
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	l, err := p.linked(ctx, peer)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // else select might take that for a peer with too much to answer
		return nil, context.Cause(ctx)
	}
	select {
	case l.asked <- struct{}{}:
	case <-l.ended:
		return nil, errHangup
	case <-l.failed:
		return nil, l.fault
	case <-ctx.Done():
		return nil, fmt.Errorf("it has %d questions to answer: %w", mostAsked, context.Cause(ctx))
	}
	x := &p.exports
	reply := make(chan imported, 1)
	x.mu.Lock()
	x.question++
	question := x.question
	x.asked[question] = reply
	x.mu.Unlock()
	ask := binary.BigEndian.AppendUint64([]byte{packetAsk}, question)
	if err := sendPacket(l.conn, append(ask, handle...)); err != nil {
		x.take(question)
		l.heard()
		return nil, fmt.Errorf("asking it: %w", err)
	}
	var got imported
	select {
	case got = <-reply:
	case <-l.ended:
		err = errHangup
	case <-l.failed:
		err = l.fault
	case <-ctx.Done():
		err = fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	if err != nil {
		if x.take(question) == nil { // the answer has just come
			if got := <-reply; got.err == nil {
				unix.Close(got.fd)
			}
		}
		return nil, err
	}
	if got.err != nil {
		return nil, got.err
	}
	defer unix.Close(got.fd)
	return mapSegment(got.fd, int(got.size))
}

// linked waits for the link to a peer and makes it if need be.
func (p *Provider) linked(ctx context.Context, peer int) (*link, error) {
	if err := p.checkPeer(peer); err != nil {
		return nil, err
	}
	t, err := p.want(peer)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.ended: // first, so that an ended context does not hide a link that exists
		return p.outcome(t)
	default:
	}
	select {
	case <-t.ended:
	case <-ctx.Done():
		return nil, fmt.Errorf("no connection: %w", context.Cause(ctx))
	}
	return p.outcome(t)
}

// outcome is what has become of an encounter that ended.
func (p *Provider) outcome(t *encounter) (*link, error) {
	p.meetings.mu.Lock()
	defer p.meetings.mu.Unlock()
	if t.link == nil {
		return nil, t.err
	}
	return t.link, nil
}

// take removes a question, and returns where the asker waits for the answer; nil if nobody does.
func (x *exports) take(question uint64) chan imported {
	x.mu.Lock()
	defer x.mu.Unlock()
	reply := x.asked[question]
	delete(x.asked, question)
	return reply
}

// attend reads the socket of a link until its end, and tells the next Poll of the end. An error before that is told, too, but
// then the peer is alive and may be writing to this rank's memory: its end is awaited all the same.
func (p *Provider) attend(rank int, l *link) {
	buf := make([]byte, maxPacket)
	for {
		b, fds, err := readPacket(l.conn, buf)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.cfg.Log.Debug("shm: a peer's socket ended", "peer", rank, "err", err)
			}
			break
		}
		if l.fault != nil {
			closeAll(fds)
			continue
		}
		if err := p.packet(l, b, fds); err != nil && !atEnd(err) {
			l.fault = fmt.Errorf("the socket to rank %d: %w", rank, err)
			close(l.failed)
			p.tell(event{rank: rank, link: l, changed: true})
		}
	}
	close(l.ended)
	p.tell(event{rank: rank, link: l, changed: true})
}

// atEnd reports whether a packet could not be sent because the socket is at its end, which
// reading finds, too.
func atEnd(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.ECONNREFUSED) ||
		errors.Is(err, net.ErrClosed)
}

// packet handles one packet. What it does not understand is an error.
func (p *Provider) packet(l *link, b []byte, fds []int) error {
	if len(b) < packetHead {
		closeAll(fds)
		return errMalformed
	}
	question := binary.BigEndian.Uint64(b[1:])
	rest := b[packetHead:]
	switch kind := b[0]; {
	case kind == packetAsk && len(rest) == handleBytes && len(fds) == 0:
		return p.exports.answer(l.conn, question, binary.BigEndian.Uint64(rest))
	case kind == packetMap && len(rest) == 8 && len(fds) <= 1:
		l.heard()
		got := imported{err: errNoDescriptor}
		if len(fds) == 1 {
			got = imported{fd: fds[0], size: binary.BigEndian.Uint64(rest)}
		}
		if reply := p.exports.take(question); reply != nil {
			reply <- got
		} else {
			closeAll(fds)
		}
		return nil
	case kind == packetNone && len(fds) == 0:
		l.heard()
		if reply := p.exports.take(question); reply != nil {
			reply <- imported{err: errors.New(string(rest))}
		}
		return nil
	case kind == packetOffer && len(rest) == 8 && len(fds) <= 1:
		defer closeAll(fds)
		if len(fds) == 0 { // this process has none left
			return nil
		}
		return p.accept(l, question, binary.BigEndian.Uint64(rest), fds[0])
	case kind == packetTaken && len(rest) == 0 && len(fds) == 0:
		l.sharing.taken(question)
		return nil
	case kind == packetWithdraw && len(rest) == 0 && len(fds) == 0:
		l.sharing.forget(question)
		return nil
	default:
		closeAll(fds)
		return errMalformed
	}
}

// answer sends a segment to the peer that asked for it, or why it cannot. A peer that leaves no room for
// answers in the socket is lost.
func (x *exports) answer(conn *net.UnixConn, question, number uint64) error {
	x.mu.Lock()
	defer x.mu.Unlock() // the descriptor is the owner's to close after Unexport
	none := binary.BigEndian.AppendUint64([]byte{packetNone}, question)
	e, ok := x.segments[number]
	if !ok {
		return sendPacket(conn, fmt.Append(none, "it exports no segment ", number))
	}
	b := binary.BigEndian.AppendUint64([]byte{packetMap}, question)
	err := sendPacket(conn, binary.BigEndian.AppendUint64(b, uint64(len(e.mem))), e.fd)
	if errors.Is(err, unix.ETOOMANYREFS) { // see party.write; a later question may be answered
		return sendPacket(conn, append(none, "its user has too many descriptors in flight"...))
	}
	return err
}

// close ends all exports, and lets none begin.
func (x *exports) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.segments = nil
	x.areas.Store(new(areas))
}
