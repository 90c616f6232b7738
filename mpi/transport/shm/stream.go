package shm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// A payload that is too long for one piece of the byte ring travels as a
// stream: a cell with the header and then chunks. Messages to the same peer wait
// until it has left, as they would on a socket.

const (
	// chunkBytes is the largest chunk, if the ring is large enough for four.
	chunkBytes = 32 << 10
	// pushBytes bounds what one Poll copies into the ring of one peer.
	pushBytes = 128 << 10
)

// maxStreams bounds the payloads that wait for one peer.
const maxStreams = 1024

// departure is a payload being sent to a peer.
type departure struct {
	begun   bool // its header has been sent
	aborted bool // tell the peer, as soon as there is a cell
	op      uint64
	header  transport.Header
	buf     []byte // what has not been sent
}

// arrival is the payload being received from a peer.
type arrival struct {
	open      bool
	discarded bool
	header    transport.Header
	size, got int
}

// errAbandoned is what an operation completes with that was given up.
var errAbandoned = errors.New("abandoned")

// sendFrom writes a message of any length, reading payload later if need be.
func (ep *endpoint) sendFrom(h *transport.Header, payload []byte, op uint64) transport.Outcome {
	if len(payload) <= eagerBytes {
		o := ep.send(h, payload)
		if o == transport.Sent {
			ep.p.complete(op, nil)
		}
		return o
	}
	if h.Kind != transport.Data {
		panic(fmt.Sprintf("shm: a message of kind %d and %d bytes: only Data may exceed EagerBytes, %d", h.Kind, len(payload), eagerBytes))
	}
	if len(ep.out.streams) == maxStreams {
		return transport.Full
	}
	ep.out.streams = append(ep.out.streams, departure{op: op, header: *h, buf: payload})
	ep.p.streams++
	if len(ep.out.streams) == 1 {
		ep.push()
	}
	return transport.Sent
}

// push sends what it can of the payloads that wait and returns how many cells that took.
func (ep *endpoint) push() (n int) {
	for left := pushBytes; left > 0 && len(ep.out.streams) > 0 && ep.state == up; n++ {
		d := &ep.out.streams[0]
		if d.aborted && !d.begun {
			ep.closeStream()
			continue
		}
		if !ep.room(1) {
			return n
		}
		c := ep.nextCell()
		if !d.begun {
			c.putHeader(&d.header)
			c[5] = uint64(len(d.buf))
			ep.post(c, word0(d.header.Kind, formOpen, 0))
			d.begun = true
			continue
		}
		if d.aborted {
			ep.post(c, word0(transport.Data, formAbort, 0))
			ep.closeStream()
			continue
		}
		size := min(len(d.buf), chunkBytes, max(firstRing, int(ep.out.ring.size))/4)
		offset, ok := ep.piece(size)
		if !ok {
			return n
		}
		ep.out.crossing.Copy(ep.out.mem[offset:], d.buf[:size], ep.p.habit.slow)
		c[1] = span(offset, uint32(size))
		ep.post(c, word0(transport.Data, formChunk, 0))
		d.buf = d.buf[size:]
		left -= size
		if len(d.buf) == 0 {
			ep.p.complete(d.op, nil)
			ep.closeStream()
		}
	}
	return n
}

// closeStream forgets the first stream.
func (ep *endpoint) closeStream() {
	ep.out.streams = slices.Delete(ep.out.streams, 0, 1)
	ep.p.streams--
}

// abandonStream gives up the stream of op, if it goes to this peer. Its memory
// is free at once: nothing but this rank ever reads it.
func (ep *endpoint) abandonStream(op uint64) bool {
	for i := range ep.out.streams {
		if d := &ep.out.streams[i]; d.op == op && !d.aborted {
			d.aborted, d.buf = true, nil
			ep.p.complete(op, errAbandoned)
			return true
		}
	}
	return false
}

// dropStreams ends all streams to a peer that takes no more.
func (ep *endpoint) dropStreams(err error) {
	for len(ep.out.streams) > 0 {
		if d := ep.out.streams[0]; !d.aborted {
			ep.p.complete(d.op, err)
		}
		ep.closeStream()
	}
}

// openArrival takes a formOpen cell.
func (ep *endpoint) openArrival(c *cell, kind transport.Kind) error {
	a, size := &ep.in.stream, c[5]
	if a.open || size > 1<<62 || kind != transport.Data {
		return fmt.Errorf("a payload of %d bytes of kind %d begins (inside another: %v): %w", size, kind, a.open, errMalformed)
	}
	*a = arrival{open: true, size: int(size)}
	c.header(kind, &a.header)
	return nil
}

// arrive takes a chunk of a stream.
func (ep *endpoint) arrive(s transport.Sink, c *cell) error {
	a := &ep.in.stream
	chunk, err := spanIn(ep.in.mem, c[1])
	if err != nil {
		return fmt.Errorf("%w: %w", err, errMalformed)
	}
	if !a.open || len(chunk) > a.size-a.got {
		return fmt.Errorf("%d bytes after %d of a payload of %d: %w", len(chunk), a.got, a.size, errMalformed)
	}
	ep.in.bytes += len(chunk)
	if !a.discarded {
		a.discarded = !place(s, ep.rank, &a.header, a.got, a.size, chunk)
	}
	a.got += len(chunk)
	if a.got == a.size {
		a.open = false
		if !a.discarded {
			s.Placed(ep.rank, &a.header)
		}
	}
	return nil
}

// place puts bytes of a Data payload where the sink wants them and reports
// false if it does not want them any more.
func place(s transport.Sink, peer int, h *transport.Header, offset, size int, chunk []byte) bool {
	for len(chunk) > 0 {
		n := copy(s.Place(peer, h, offset, size), chunk)
		if n == 0 {
			return false
		}
		offset += n
		chunk = chunk[n:]
	}
	return true
}
