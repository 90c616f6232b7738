package memcopy

import "encoding/binary"

// Short is copy for what is mostly one word: that is copied without a call, which would take longer than the copying.
func Short(dst, src []byte) {
	if len(src) == 8 && len(dst) >= 8 {
		binary.NativeEndian.PutUint64(dst, binary.NativeEndian.Uint64(src))
		return
	}
	copy(dst, src)
}
