package tcp

import (
	"encoding/binary"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// A message on the wire, all little endian:
//
//	mark 1 | padding 1 | kind 1 | flags 1 | context 4 | tag 4 | payload length 8 |
//	bytes 8, unless equal to the payload length | token 8, unless 0 | aux 8, unless 0 |
//	padding: as many bytes as said
//
// followed by the payload: as it is, or for Data in chunks. Each chunk follows a word (wordBytes) with its length in the
// first four bytes. A word of zero ends the message early, so that a sender can give up in the middle.
//
// The padding makes every message a multiple of a cache line. The kernel lays
// the stream into its pages without gaps, so payloads stay aligned there, and copying 64 KiB in
// and out takes a tenth less time.
const (
	headBytes    = 20
	lineBytes    = 64
	maxHeadBytes = headBytes + 3*8 + lineBytes - 1
	wordBytes    = lineBytes

	flagBytes = 1 << 0
	flagToken = 1 << 1
	flagAux   = 1 << 2

	mark = 0xf1
)

// packHeader writes the header of a message to dst (maxHeadBytes long) and
// returns its length.
func packHeader(dst []byte, h *transport.Header, payloadBytes uint64) int {
	dst = dst[:maxHeadBytes]
	le := binary.LittleEndian
	dst[0] = mark
	dst[2] = byte(h.Kind)
	le.PutUint32(dst[4:], h.Context)
	le.PutUint32(dst[8:], uint32(h.Tag))
	le.PutUint64(dst[12:], payloadBytes)
	n := headBytes
	var flags byte
	if h.Bytes != payloadBytes {
		flags |= flagBytes
		le.PutUint64(dst[n:], h.Bytes)
		n += 8
	}
	if h.Token != 0 {
		flags |= flagToken
		le.PutUint64(dst[n:], h.Token)
		n += 8
	}
	if h.Aux != 0 {
		flags |= flagAux
		le.PutUint64(dst[n:], h.Aux)
		n += 8
	}
	padding := -(n + int(payloadBytes)) & (lineBytes - 1)
	dst[1] = byte(padding)
	clear(dst[n : n+padding])
	dst[3] = flags
	return n + padding
}

// headLength tells from the first headBytes of a message how long its header is.
func headLength(b []byte) (int, error) {
	if b[0] != mark || b[1] >= lineBytes {
		return 0, fmt.Errorf("malformed message: it begins with %#x", b[:headBytes])
	}
	flags := b[3]
	if flags&^(flagBytes|flagToken|flagAux) != 0 {
		return 0, fmt.Errorf("malformed message: flags %#x", flags)
	}
	n := headBytes + int(b[1])
	for ; flags != 0; flags &= flags - 1 {
		n += 8
	}
	return n, nil
}

// unpackHeader reads a whole header into h and returns the payload's length.
func unpackHeader(b []byte, h *transport.Header) (payloadBytes uint64, err error) {
	le := binary.LittleEndian
	flags := b[3]
	h.Kind = transport.Kind(b[2])
	h.Context = le.Uint32(b[4:])
	h.Tag = int32(le.Uint32(b[8:]))
	payloadBytes = le.Uint64(b[12:])
	h.Bytes, h.Token, h.Aux = payloadBytes, 0, 0
	n := headBytes
	if flags&flagBytes != 0 {
		h.Bytes = le.Uint64(b[n:])
		n += 8
	}
	if flags&flagToken != 0 {
		h.Token = le.Uint64(b[n:])
		n += 8
	}
	if flags&flagAux != 0 {
		h.Aux = le.Uint64(b[n:])
	}
	if h.Kind == transport.Data {
		if payloadBytes > 1<<62 {
			return 0, fmt.Errorf("malformed message: data of %d bytes", payloadBytes)
		}
	} else if payloadBytes > EagerBytes {
		return 0, fmt.Errorf("malformed message: kind %d with a payload of %d bytes, bound %d", h.Kind, payloadBytes, EagerBytes)
	}
	return payloadBytes, nil
}
