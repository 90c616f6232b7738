package native

import (
	"os"
	"slices"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// forgetBytes is the smallest transfer that may have registered its buffer: below it
// every library copies.
const forgetBytes = 4 << 10

// span is memory that is never given back to the system.
type span struct{ from, to uintptr }

// openRegistrations finds UCX's entry for telling its caches that memory was unmapped.
//
// Those caches watch the C library's munmap and madvise, which the Go runtime does not
// call; so a buffer that the collector frees and the runtime gives back and reuses has
// new physical pages under an old registration, and an RDMA transfer goes to the old
// ones.
func (w *World) openRegistrations(rule Registrations) {
	w.unmapFn = clib.Global("ucm_vm_munmap")
	w.forgets = w.unmapFn != 0 && (rule == ForgetAlways || rule == ForgetOnRDMA && hasRDMA("/sys/class/infiniband"))
	w.log.Debug("registrations that the library may have cached", "ucx", w.unmapFn != 0, "dropped_after_use", w.forgets)
}

func hasRDMA(dir string) bool {
	devices, err := os.ReadDir(dir)
	return err == nil && len(devices) > 0
}

// Keep announces memory that will not be given back to the system before Release or
// Close, such as mpi.Alloc's: registrations of buffers inside it stay cached.
func (w *World) Keep(memory []byte) {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	w.lock()
	w.kept = append(w.kept, span{from, from + uintptr(len(memory))})
	w.mu.Unlock()
}

// Release takes back what Keep announced, named by the same memory, and drops the
// registrations in it. It is called before the memory is unmapped, and no transfer may
// be under way there.
func (w *World) Release(memory []byte) {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	w.lock()
	defer w.mu.Unlock()
	w.kept = slices.DeleteFunc(w.kept, func(s span) bool { return s.from == from })
	if w.unmapFn != 0 && !w.closed {
		w.unmapped(from, len(memory))
	}
}

// unmapped tells UCX that memory is no longer what it was. The lock is held.
func (w *World) unmapped(at uintptr, bytes int) {
	b := clib.Block{Fn: w.unmapFn, A: [clib.MaxArgs]uintptr{at, uintptr(bytes)}}
	b.Call()
}

// forget drops what the library may have cached about r's buffers. The lock is held.
func (w *World) forget(r *Request) {
	if !w.forgets {
		return
	}
	for _, m := range [...]struct {
		at    unsafe.Pointer
		bytes int
	}{{r.buf, r.bytes}, {r.from, r.fromBytes}} {
		if m.at != nil && m.bytes >= forgetBytes && !w.isKept(uintptr(m.at), uintptr(m.at)+uintptr(m.bytes)) {
			w.unmapped(uintptr(m.at), m.bytes)
		}
	}
}

func (w *World) isKept(from, to uintptr) bool {
	for _, s := range w.kept {
		if s.from <= from && to <= s.to {
			return true
		}
	}
	return false
}
