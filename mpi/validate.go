package mpi

import (
	"encoding/binary"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// What a peer says is looked at before the protocol acts on it: its numbers become lengths of slices,
// amounts of memory and indices. A peer that says what no rank would is lost, like one whose
// connection broke.

// maxMessageBytes is more than any process has addresses for.
const maxMessageBytes = 1 << 48

// keyBytes is the payload of an RTS for memory that can be pulled.
const keyBytes = len(transport.Key{})

// validate says what is wrong with a message in itself. Whether the operation or window that it names
// exists is for its handler to find out: that may have ended meanwhile without anybody's fault.
func (e *engine) validate(rank int, h *transport.Header, payload []byte) error {
	n := uint64(len(payload))
	switch h.Kind {
	case kindEager:
		if h.Bytes != n || h.Tag < 0 {
			return fmt.Errorf("malformed message: eager, tag %d, said to have %d bytes, and has %d", h.Tag, h.Bytes, n)
		}
	case kindRTS:
		if h.Bytes > maxMessageBytes || h.Tag < 0 || h.Token == 0 || n != 0 && n != uint64(keyBytes) {
			return fmt.Errorf("malformed message: %d bytes announced, at most %d are possible, by operation %#x, tag %d, with a key of %d bytes, not 0 or %d",
				h.Bytes, uint64(maxMessageBytes), h.Token, h.Tag, n, keyBytes)
		}
	case kindCTS:
		if h.Bytes > maxMessageBytes {
			return fmt.Errorf("malformed message: %d bytes asked for, at most %d are possible", h.Bytes, uint64(maxMessageBytes))
		}
	case kindRetract:
		if h.Token == 0 {
			return fmt.Errorf("malformed message: an operation without a name taken back")
		}
	case kindRevoke:
		if h.Context&1 != 0 {
			return fmt.Errorf("malformed message: communicator %d revoked, of which the user's are even", h.Context)
		}
	case kindShrink:
		return e.validateShrink(h, payload)
	case kindWindow:
		return e.validateWindow(e.peer(rank), h, n)
	}
	return nil
}

func (e *engine) validateShrink(h *transport.Header, payload []byte) error {
	size := e.size
	if c := e.comms[h.Context]; c != nil {
		size = c.Size()
	}
	if h.Aux > shrinkQuery || len(payload)%4 != 0 || len(payload)/4 > size {
		return fmt.Errorf("malformed message: step %d of an agreement, with %d bytes about the losses among %d ranks", h.Aux, len(payload), size)
	}
	for ; len(payload) > 0; payload = payload[4:] {
		if r := binary.LittleEndian.Uint32(payload); r >= uint32(size) {
			return fmt.Errorf("malformed message: rank %d of %d is said to be lost", r, size)
		}
	}
	return nil
}

func (e *engine) validateWindow(p *peer, h *transport.Header, n uint64) error {
	code := windowCode(h.Tag)
	switch {
	case h.Tag>>16 != 0 || code < windowPut || code > windowFailed:
		return fmt.Errorf("malformed message: one-sided operation %#x", h.Tag)
	case h.Aux > maxMessageBytes:
		return fmt.Errorf("malformed message: one-sided operation at %d, at most %d is possible", h.Aux, uint64(maxMessageBytes))
	case code == windowGet && (n != 0 || h.Bytes > uint64(p.caps.EagerBytes)):
		return fmt.Errorf("malformed message: %d bytes asked for at a time, at most %d can be had", h.Bytes, p.caps.EagerBytes)
	case code != windowGet && h.Bytes != n:
		return fmt.Errorf("malformed message: one-sided operation said to have %d bytes, and has %d", h.Bytes, n)
	}
	return nil
}
