package collective

// The memory of reproducible sums (reproducible.go), which a communicator keeps from one to the next.

import "unsafe"

// fixedPoint is the memory in which a reproducible sum is taken.
type fixedPoint struct {
	magnitudes []uint16
	quads      []quad // for float32, two integers each
}

// takeFixed is zeroed memory for a sum of n elements of so many bytes, with one more magnitude.
func (s *state) takeFixed(n, elemBytes int) *fixedPoint {
	quads := (n*elemBytes + 7) / 8
	var f *fixedPoint
	s.mu.Lock()
	if last := len(s.fixed) - 1; last >= 0 {
		f, s.fixed = s.fixed[last], s.fixed[:last]
	}
	s.mu.Unlock()
	if f == nil || cap(f.magnitudes) <= n || cap(f.quads) < quads {
		return &fixedPoint{make([]uint16, n+1), make([]quad, quads)}
	}
	f.magnitudes, f.quads = f.magnitudes[:n+1], f.quads[:quads]
	clear(f.magnitudes)
	clear(f.quads)
	return f
}

// keepFixed keeps memory for sums to come, unless there is much already.
func (s *state) keepFixed(f *fixedPoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := f.bytes()
	for _, kept := range s.fixed {
		sum += kept.bytes()
	}
	if sum <= idleBytes {
		s.fixed = append(s.fixed, f)
	}
}

func (f *fixedPoint) bytes() int {
	return cap(f.magnitudes)*int(unsafe.Sizeof(uint16(0))) + cap(f.quads)*int(unsafe.Sizeof(quad(0)))
}
