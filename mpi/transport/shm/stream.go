package shm

import (
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// A payload that is too long for one piece of the byte ring travels as a
// stream: a cell with the header, which keeps the message's place in the order,
// and chunks, between which other messages pass.

const (
	// maxStreams is how many payloads one rank sends to one peer at a time.
	maxStreams = 64
	// chunkBytes is the largest chunk, if the ring is large enough for four.
	chunkBytes = 32 << 10
	// pushBytes bounds what one Poll copies into the rings of one peer.
	pushBytes = 128 << 10
)

// departure is a payload being sent.
type departure struct {
	op      uint64
	buf     []byte
	aborted bool // tell the peer, as soon as there is a cell
}

// streams are the payloads being sent to one peer.
type streams struct {
	open  [maxStreams]*departure
	count int
	turn  int
}

// arrival is a payload being received.
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
	s := &ep.out.streams
	if s.count == maxStreams || !ep.room(1) {
		return ep.refused()
	}
	id := 0
	for s.open[id] != nil {
		id++
	}
	c := ep.nextCell()
	c.putHeader(h)
	c[5], c[6] = uint64(len(payload)), uint64(id)
	ep.post(h.Kind, formOpen, 0)
	s.open[id] = &departure{op: op, buf: payload}
	s.count++
	ep.p.streams++
	ep.push()
	return transport.Sent
}

// push sends chunks of the open streams in turn and returns how many.
func (ep *endpoint) push() (n int) {
	s := &ep.out.streams
	for left := pushBytes; left > 0 && s.count > 0 && ep.state == up; n++ {
		id := s.turn % maxStreams
		d := s.open[id]
		if d == nil {
			s.turn++
			n--
			continue
		}
		if !ep.room(1) {
			return n
		}
		c := ep.nextCell()
		if d.aborted {
			c[1] = uint64(id)
			ep.post(transport.Data, formAbort, 0)
			ep.closeStream(id)
			continue
		}
		size := min(len(d.buf), chunkBytes, max(firstRing, int(ep.out.ring.size))/4)
		offset, ok := ep.piece(size)
		if !ok {
			return n
		}
		copy(ep.out.mem[offset:], d.buf[:size])
		c[1], c[2] = uint64(id), span(offset, uint32(size))
		ep.post(transport.Data, formChunk, 0)
		d.buf = d.buf[size:]
		left -= size
		if len(d.buf) == 0 {
			ep.p.complete(d.op, nil)
			ep.closeStream(id)
		}
		s.turn++
	}
	return n
}

func (ep *endpoint) closeStream(id int) {
	ep.out.streams.open[id] = nil
	ep.out.streams.count--
	ep.p.streams--
}

// abandonStream gives up the stream of op, if it is one of this peer's. Its
// memory is free at once: nothing but this rank ever reads it.
func (ep *endpoint) abandonStream(op uint64) bool {
	for _, d := range ep.out.streams.open {
		if d != nil && d.op == op && !d.aborted {
			d.aborted, d.buf = true, nil
			ep.p.complete(op, errAbandoned)
			return true
		}
	}
	return false
}

// dropStreams ends all streams to a peer that takes no more.
func (ep *endpoint) dropStreams(err error) {
	for id, d := range ep.out.streams.open {
		if d == nil {
			continue
		}
		if !d.aborted {
			ep.p.complete(d.op, err)
		}
		ep.closeStream(id)
	}
}

// openArrival takes a formOpen cell.
func (ep *endpoint) openArrival(c *cell, kind transport.Kind) error {
	id, size := c[6], c[5]
	if id >= maxStreams || size > 1<<62 {
		return fmt.Errorf("stream %d of %d bytes: %w", id, size, errMalformed)
	}
	a := ep.in.streams[id]
	if a == nil {
		a = &arrival{}
		ep.in.streams[id] = a
	}
	if a.open {
		return fmt.Errorf("stream %d opened twice: %w", id, errMalformed)
	}
	*a = arrival{open: true, size: int(size)}
	c.header(kind, &a.header)
	return nil
}

// openStream finds the stream that a cell continues.
func (ep *endpoint) openStream(id uint64) (*arrival, error) {
	if id >= maxStreams || ep.in.streams[id] == nil || !ep.in.streams[id].open {
		return nil, fmt.Errorf("stream %d is not open: %w", id, errMalformed)
	}
	return ep.in.streams[id], nil
}

// arrive takes a chunk of a stream.
func (ep *endpoint) arrive(s transport.Sink, c *cell) error {
	a, err := ep.openStream(c[1])
	if err != nil {
		return err
	}
	chunk, err := spanIn(ep.in.mem, c[2])
	if err != nil {
		return fmt.Errorf("%w: %w", err, errMalformed)
	}
	if len(chunk) > a.size-a.got {
		return fmt.Errorf("stream %d of %d bytes has %d at least: %w", c[1], a.size, a.got+len(chunk), errMalformed)
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
