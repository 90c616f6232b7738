package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// A frame is four bytes of length (little endian, of kind and body), one byte of
// kind, and the body. Frames carry the bootstrap and the tree; messages of ranks have
// their own format in the tcp provider.

const (
	frameHeadBytes = 5
	// readStep bounds what a length field alone can make a reader allocate.
	readStep = 64 << 10
)

// AppendFrame appends one frame to dst.
func AppendFrame(dst []byte, kind byte, body []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(body)+1))
	dst = append(dst, kind)
	return append(dst, body...)
}

// ReadFrame reads one frame whose body has at most maxBytes. The body uses
// buf's memory as far as it goes and is the caller's. Memory grows only as
// bytes really arrive. io.EOF is returned bare between frames, else as
// io.ErrUnexpectedEOF.
func ReadFrame(r io.Reader, buf []byte, maxBytes int) (kind byte, body []byte, err error) {
	var head [frameHeadBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	length := binary.LittleEndian.Uint32(head[:])
	if length < 1 || uint64(length)-1 > uint64(maxBytes) {
		return 0, nil, fmt.Errorf("malformed frame: length %d, must be 1 to %d", length, maxBytes+1)
	}
	left := int(length) - 1
	body = buf[:0]
	for left > 0 {
		step := min(left, readStep)
		at := len(body)
		if cap(body)-at < step {
			grown := make([]byte, at, min(at+left, 2*cap(body)+step))
			copy(grown, body)
			body = grown
		}
		body = body[:at+step]
		if _, err := io.ReadFull(r, body[at:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, nil, err
		}
		left -= step
	}
	return head[4], body, nil
}
