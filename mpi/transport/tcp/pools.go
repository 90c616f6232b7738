package tcp

// pools keeps buffers for messages that arrive in pieces and for output that
// has to wait, by class of size, so that an idle connection holds none.
type pools struct {
	free [len(classBytes)][][]byte
}

var classBytes = [...]int{8 << 10, 32 << 10, EagerBytes, stageBytes}

// keepFree bounds the buffers of a class that wait for use.
const keepFree = 16

// get returns a buffer of n bytes, at most stageBytes.
func (p *pools) get(n int) []byte {
	for i, size := range classBytes {
		if n > size {
			continue
		}
		if last := len(p.free[i]) - 1; last >= 0 {
			b := p.free[i][last]
			p.free[i] = p.free[i][:last]
			return b[:n]
		}
		return make([]byte, n, size)
	}
	panic("tcp: buffer larger than any message")
}

// put takes a buffer from get back; nil is ignored.
func (p *pools) put(b []byte) {
	for i, size := range classBytes {
		if cap(b) == size && len(p.free[i]) < keepFree {
			p.free[i] = append(p.free[i], b[:0])
			return
		}
	}
}
