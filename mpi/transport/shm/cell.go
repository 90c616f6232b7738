package shm

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// cell is one cache line of a ring. It carries one message, several short ones (formRun), or one step of a longer transfer.
//
// Word 0 holds, from the low end, the sequence number (32 bits), the message's
// kind (8), the form of the cell (8) and the length of the payload inside the
// cell (16). It is stored last, so a reader that finds the sequence number it
// waits for finds the other seven words complete: one cache line moves per
// small message and nothing else.
type cell [8]uint64

// form says what a cell's words mean.
type form uint8

const (
	// formShort: word 1 context and tag, payload from word 2. The header's
	// Bytes is the payload's length, Token and Aux are zero.
	formShort form = 1 + iota
	// formFull: word 1 context and tag, 2 Bytes, 3 Token, 4 Aux, payload from word 5.
	formFull
	// formRing: header as formFull, word 5 offset and length of the payload in the byte ring.
	formRing
	// formOpen: header as formFull, word 5 length of the payload that follows
	// in chunks.
	formOpen
	// formChunk: word 1 offset and length of the chunk in the byte ring.
	formChunk
	// formAbort: the payload ends before all of it was sent.
	formAbort
	// formHelp: word 1 slot and generation of an exposure that is being pulled, word 2 address of the destination, word 3 its
	// length in bytes, words 4 and 5 its segment and the offset there, if the exposing rank has that mapped.
	formHelp
	// formRun: word 1 context and tag, from word 2 on payloads of one length, each beginning at a word. The sender may add
	// more. Their length (8 bits) and number (8) are in word 0.
	formRun
)

const (
	cellBytes  = int(unsafe.Sizeof(cell{}))
	shortBytes = 6 * 8 // payload of a formShort cell
	fullBytes  = 3 * 8 // payload of a formFull cell
)

// word0 packs everything of word 0 but the sequence number.
func word0(kind transport.Kind, f form, inline int) uint64 {
	return uint64(kind)<<32 | uint64(f)<<40 | uint64(inline)<<48
}

func cellForm(w0 uint64) form           { return form(w0 >> 40) }
func cellKind(w0 uint64) transport.Kind { return transport.Kind(w0 >> 32) }
func cellInline(w0 uint64) int          { return int(w0 >> 48) }

// ready loads word 0 and reports whether the cell holds message number seq.
func (c *cell) ready(seq uint32) (w0 uint64, ok bool) {
	w0 = atomic.LoadUint64(&c[0])
	return w0, uint32(w0) == seq
}

// bytes views n bytes of the cell from the given word on.
func (c *cell) bytes(word, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&c[word])), n)
}

// envelope is word 1 of a message's cell. Context and tag have mostly just been stored, one after the other. With a shift the
// compiler would make one load of both. That load is not served until the two stores have reached the cache, and they wait
// for earlier stores, to cells that the receiver has. Two separate loads are served at once.
func envelope(h *transport.Header) uint64 {
	return uint64(h.Context) | bits.RotateLeft64(uint64(uint32(h.Tag)), 32)
}

func (c *cell) putHeader(h *transport.Header) {
	c[1] = envelope(h)
	c[2] = h.Bytes
	c[3] = h.Token
	c[4] = h.Aux
}

func (c *cell) header(kind transport.Kind, h *transport.Header) {
	h.Kind = kind
	h.Context, h.Tag = uint32(c[1]), int32(c[1]>>32)
	h.Bytes, h.Token, h.Aux = c[2], c[3], c[4]
}

// span is a piece of the byte ring.
func span(offset, n uint32) uint64 { return uint64(offset) | uint64(n)<<32 }

// spanIn views the piece of ring that w names, or says that it lies outside.
func spanIn(ring []byte, w uint64) ([]byte, error) {
	offset, n := uint64(uint32(w)), w>>32
	if offset+n > uint64(len(ring)) {
		return nil, fmt.Errorf("payload at %d+%d lies outside the ring of %d bytes", offset, n, len(ring))
	}
	return ring[offset : offset+n : offset+n], nil
}

// ringPayload is the payload of a formRing cell. A sender goes through its ring in order, and a message is often as long as
// the one before, so the span is mostly the one that is expected. The processor predicts that, and reads the payload there
// while the cell's line is on its way. Otherwise it would wait for the cell, and only then for the payload's lines, 0.05 µs
// more. After Lipasti, Wilkerson, Shen, "Value locality and load value prediction", 1996.
func (in *inbox) ringPayload(c *cell) ([]byte, error) {
	if at := c[5]; at != in.expected {
		in.expect(at)
	}
	payload, err := spanIn(in.mem, in.expected)
	if err == nil {
		next := (uint64(uint32(in.expected)) + uint64(len(payload)) + pieceAlign - 1) &^ (pieceAlign - 1)
		in.expected = span(uint32(next)+gapAfter(len(payload), in.most), uint32(len(payload)))
	}
	return payload, err
}

// expect is not inlined, so that the code after it loads in.expected: that load does not depend on the cell.
//
//go:noinline
func (in *inbox) expect(at uint64) { in.expected = at }
