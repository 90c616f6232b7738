package native

import (
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// statusLayout says where a status keeps its byte count and its cancelled flag. It is
// not part of any ABI, so it is believed only after a trial.
type statusLayout uint8

const (
	// askLayout: unknown; ask the library.
	askLayout statusLayout = iota
	// wordLayout: a size_t at 16 (Open MPI).
	wordLayout
	// splitLayout: low half at 0, high half shifted left by one at 4 (MPICH).
	splitLayout
)

func (l statusLayout) count(s *[8]uint64) int {
	switch l {
	case wordLayout:
		return int(s[2])
	case splitLayout:
		return int(uint32(s[0])) | int(s[0]>>33)<<32
	}
	return -1
}

// probeStatus has the library write counts to a status and takes the layout under
// which all of them read back.
func (w *World) probeStatus() statusLayout {
	candidates := []statusLayout{wordLayout, splitLayout}
	for _, l := range candidates {
		good := true
		for _, count := range []int{0, 1, 4096, 0x7fffffff, 0x123456789a} {
			s := new([8]uint64)
			for i := range s {
				s[i] = 0
			}
			rc := clib.Call(w.fn.statusSetElementsX, uintptr(unsafe.Pointer(s)), uintptr(w.abi.types[Byte]), uintptr(count))
			good = good && int32(rc) == 0 && l.count(s) == count
		}
		if good {
			return l
		}
	}
	return askLayout
}

// readStatus translates the status of a completed receive or probe. The world's lock
// is held.
func (w *World) readStatus(r *Request) Status {
	if r.peer == ProcNull { // MPICH leaves the status as it was
		return Status{Source: ProcNull, Tag: AnyTag}
	}
	base := unsafe.Pointer(&r.status)
	s := Status{
		Source: int(*(*int32)(unsafe.Add(base, w.abi.statusSource))),
		Tag:    int(*(*int32)(unsafe.Add(base, w.abi.statusTag))),
	}
	// A count of a made datatype may be kept in elements of it: ask.
	if r.large != 0 || w.layout == askLayout {
		n := new(int)
		datatype := w.abi.types[Byte]
		if r.large != 0 {
			datatype = w.load(&r.large)
		}
		clib.Call(w.fn.getElementsX, uintptr(base), uintptr(datatype), uintptr(unsafe.Pointer(n)))
		s.Bytes = *n
		return s
	}
	s.Bytes = w.layout.count(&r.status)
	return s
}

func (w *World) wasCancelled(r *Request) bool {
	flag := new(int32)
	clib.Call(w.fn.testCancelled, uintptr(unsafe.Pointer(&r.status)), uintptr(unsafe.Pointer(flag)))
	return *flag != 0
}
