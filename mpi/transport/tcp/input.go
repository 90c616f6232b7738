package tcp

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// input is where a connection stands in the incoming stream. It does no I/O:
// parse takes bytes that were read, targets says where the next ones should go.
type input struct {
	state inState
	fill  int // bytes of the header or the word collected in small
	small [maxHeadBytes]byte

	h       transport.Header
	length  uint64 // of the payload
	at      uint64 // payload bytes that have come
	body    []byte // where a payload that comes in pieces is put together
	buffer  []byte // what body lies in, from the pools
	chunk   int    // bytes left of the chunk of a Data payload, or of one that the engine claimed
	discard bool   // the engine does not want the rest

	// idle is how much the next read between messages asks for, judged by the last long message. Before a Data payload that
	// is little, since what comes with its header is copied once more. Before other long messages it is as much as a read may
	// bring: a read that brings only the header costs more than copying 64 KiB in the cache.
	idle int
}

type inState uint8

const (
	inHead inState = iota
	inBody
	inWord
	inChunk
)

// parse takes b, the next bytes of the stream, and hands over what they make
// whole. It returns the number of events, and an error for a stream that no
// rank would send. It stops early when the sink detaches the peer.
func (c *conn) parse(b []byte, s transport.Sink) (events int, err error) {
	in := &c.in
	for len(b) > 0 && !c.closed {
		switch in.state {
		case inHead:
			var head []byte
			if head, b, err = in.header(b); head == nil || err != nil {
				return events, err
			}
			if in.length, err = unpackHeader(head, &in.h); err != nil {
				return events, err
			}
			in.at, in.discard = 0, false
			if in.length+maxHeadBytes > tailBytes {
				in.idle = stagingBytes
			}
			switch {
			case in.h.Kind == transport.Data:
				in.idle = tailBytes
				if in.state = inWord; in.length == 0 {
					in.state = inHead
					s.Placed(c.peer, &in.h)
					events++
				}
			case uint64(len(b)) >= in.length:
				payload := b[:in.length:in.length]
				b = b[in.length:]
				s.Message(c.peer, &in.h, payload)
				events++
			case c.claimed(s):
				in.state, in.chunk = inChunk, int(in.length)
			default:
				c.collect(b)
				return events, nil
			}
		case inBody:
			n := copy(in.body[in.at:], b)
			b = b[n:]
			events += c.arrived(n, s)
		case inWord:
			n := copy(in.small[in.fill:wordBytes], b)
			in.fill += n
			b = b[n:]
			if in.fill < wordBytes {
				return events, nil
			}
			in.fill = 0
			length := binary.LittleEndian.Uint32(in.small[:])
			if length == 0 { // given up by the sender
				in.state = inHead
				events++
				continue
			}
			if length > chunkBytes || uint64(length) > in.length-in.at {
				return events, fmt.Errorf("malformed message: chunk of %d bytes at %d of %d", length, in.at, in.length)
			}
			in.chunk = int(length)
			in.state = inChunk
		case inChunk:
			n := min(len(b), in.chunk)
			if dst := c.place(s); dst != nil {
				n = copy(dst, b[:n])
			}
			if c.closed {
				return events, nil
			}
			b = b[n:]
			events += c.arrived(n, s)
		}
	}
	return events, nil
}

// claimed reports whether the sink has memory for the payload that begins.
func (c *conn) claimed(s transport.Sink) bool {
	in := &c.in
	if in.length < claimBytes {
		return false
	}
	by, ok := s.(transport.Claimer)
	return ok && by.Claim(c.peer, &in.h, int(in.length))
}

// collect begins to put a payload together; b, the end of what was read, is its beginning. If the payload is large, b stays
// where it is, in the staging buffer, the rest is read in behind it, and the provider takes another staging buffer.
func (c *conn) collect(b []byte) {
	in, p := &c.in, c.p
	in.state, in.at = inBody, uint64(len(b))
	if int(in.length) >= adoptBytes && cap(b) >= int(in.length) && p.holds(b) {
		in.body = b[:in.length]
		in.buffer = p.staging
		p.staging = p.pools.get(stageBytes)
		return
	}
	in.buffer = p.pools.get(int(in.length))
	in.body = in.buffer
	copy(in.body, b)
}

// holds reports whether b is a part of the staging buffer.
func (p *Provider) holds(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	at, from := uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&p.staging[0]))
	return at >= from && at < from+uintptr(len(p.staging))
}

// header collects a header; nil as long as it is not whole.
func (in *input) header(b []byte) (head, rest []byte, err error) {
	if in.fill == 0 && len(b) >= headBytes {
		n, err := headLength(b)
		if err != nil {
			return nil, nil, err
		}
		if len(b) >= n {
			return b[:n], b[n:], nil
		}
	}
	for want := headBytes; ; {
		if in.fill >= headBytes {
			if want, err = headLength(in.small[:]); err != nil {
				return nil, nil, err
			}
			if in.fill == want {
				in.fill = 0
				return in.small[:want], b, nil
			}
		}
		n := copy(in.small[in.fill:want], b)
		in.fill += n
		b = b[n:]
		if in.fill < want {
			return nil, nil, nil
		}
	}
}

// place asks the engine for the memory of the next bytes of the current chunk;
// nil if they are to be thrown away.
func (c *conn) place(s transport.Sink) []byte {
	in := &c.in
	if in.discard {
		return nil
	}
	dst := s.Place(c.peer, &in.h, int(in.at), int(in.length))
	if len(dst) == 0 {
		in.discard = true
		return nil
	}
	return dst[:min(len(dst), in.chunk)]
}

// arrived accounts for n bytes of a payload that are where they belong.
func (c *conn) arrived(n int, s transport.Sink) int {
	in := &c.in
	in.at += uint64(n)
	whole := in.at == in.length
	switch in.state {
	case inChunk:
		if in.chunk -= n; in.chunk > 0 {
			return 0
		}
		if in.state = inWord; !whole {
			return 0
		}
		in.state = inHead
		if !in.discard {
			s.Placed(c.peer, &in.h)
		}
		return 1
	case inBody:
		if !whole {
			return 0
		}
		body, buffer := in.body, in.buffer
		in.body, in.buffer, in.state = nil, nil, inHead
		s.Message(c.peer, &in.h, body)
		c.p.pools.put(buffer)
		return 1
	}
	panic("tcp: payload bytes outside a payload")
}

const (
	// stagingBytes is what one read may bring of headers and eager messages.
	stagingBytes = 64 << 10
	// claimBytes is the size from which the sink is asked to claim a payload: what did not come with the header is then read
	// to where it belongs.
	claimBytes = 16 << 10
	// adoptBytes is the size from which a payload that begins in the staging buffer
	// stays there.
	adoptBytes = 16 << 10
	// tailBytes is how many of the bytes behind a payload a read straight into its memory may bring.
	tailBytes = 4 << 10
	// readBudget bounds what one Poll reads from one connection.
	readBudget = 512 << 10
)

// receive reads what is there, up to the budget, and reports progress as
// events: messages, or one for bytes that did not complete any.
func (c *conn) receive(s transport.Sink) (events int) {
	p := c.p
	for total := 0; total < readBudget; {
		var direct []byte // memory that the bytes belong to
		switch c.in.state {
		case inBody:
			direct = c.in.body[c.in.at:]
		case inChunk:
			direct = c.place(s)
			if c.closed {
				return events
			}
		}
		var n int
		var errno unix.Errno
		asked := len(direct)
		switch {
		case direct == nil:
			if asked = c.in.idle; asked == 0 {
				asked = tailBytes
			}
			n, errno = recvOnce(c.fd, p.staging[:asked])
		case c.in.state == inChunk && asked < c.in.chunk:
			n, errno = recvOnce(c.fd, direct)
		default:
			asked += tailBytes
			setIovec(&p.iov[0], direct)
			setIovec(&p.iov[1], p.staging[:tailBytes])
			n, errno = readvOnce(c.fd, p.iov[:2])
			p.iov[0].Base = nil
		}
		if errno != 0 {
			if errno != unix.EAGAIN && errno != unix.EINTR {
				p.lose(s, c.peer, socketError(errno))
				return events + 1
			}
			return events + min(total, 1)
		}
		if n == 0 {
			err := c.broken
			if err == nil {
				err = errHangup
			}
			p.lose(s, c.peer, err)
			return events + 1
		}
		total += n
		c.came += n
		k := min(n, len(direct))
		if k > 0 {
			events += c.arrived(k, s)
			if c.closed {
				break
			}
		}
		staged := p.staging[:n-k]
		more, err := c.parse(staged, s)
		events += more
		if err != nil {
			p.lose(s, c.peer, fmt.Errorf("tcp: %w", err))
			return events + 1
		}
		if c.closed || n < asked {
			break
		}
	}
	return max(events, 1)
}
