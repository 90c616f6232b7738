package mpi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
)

// memory is what a world keeps about memory off the Go heap.
type memory struct {
	mu      sync.Mutex
	slabs   []*slab
	imports map[imported]*mapping
}

// slab is one piece of memory that other ranks of the host can map: a sealed
// memfd, so that nobody can take pages away from under another's mapping.
type slab struct {
	mem     []byte
	fd      int
	pages   shm.Pages
	handles map[transport.Mapper][]byte // by which peers import it
	windows int                         // windows and Shareds that lie in it
	shared  bool                        // it has been in one: peers may use it for longer than this rank
}

// imported names a peer's slab.
type imported struct {
	rank   int
	handle string
}

// mapping is a peer's slab in this process, for as long as anybody needs it.
type mapping struct {
	name  imported
	mem   []byte
	users int // windows and Shareds that reach into it, and Mappings
}

// heldMemory is what a window or a Shared holds on to.
type heldMemory struct {
	memory *memory
	slab   *slab // in which this rank's part lies
	mapped []*mapping
}

// Alloc returns n zeroed elements of memory that the Go runtime does not
// manage: it never moves or goes back to the system before Free, and the other
// ranks of the host can map it. Large messages out of it to those ranks are copied once, without the kernel, and
// windows on it are accessed by them without the help of this rank (NewWindow). From 2 MiB on it consists of huge pages
// where the system has free ones or can make some, which takes about as long as zeroing them and some milliseconds more.
// It may hold no Go pointers, which no Elem has.
//
// Over the system's MPI library, registrations of this memory with the network's cards are used again by later
// transfers. Those of the Go heap are not, since the runtime gives pages back to the system without the library's
// seeing it.
//
// Not collective; may be called by any goroutine. The memory stays until Free, also
// after the slice has gone out of scope. An error says how much could not be had.
func Alloc[T Elem](c *Comm, n int) ([]T, error) {
	if most := math.MaxInt / 2 / SizeOf[T](); n < 0 || n > most {
		return nil, c.fail("alloc", ProcNull, AnyTag, ErrArgument, fmt.Sprintf("%d elements of %d bytes; lengths run from 0 to %d", n, SizeOf[T](), most))
	}
	if n == 0 {
		return []T{}, nil
	}
	s, err := newSlab(n * SizeOf[T]())
	if err != nil {
		return nil, c.fail("alloc", ProcNull, AnyTag, err, "")
	}
	m := &c.world.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slabs = append(m.slabs, s)
	if mapper := c.dev.mapper(); mapper != nil {
		if _, err := s.export(mapper); err != nil { // messages go without
			c.world.log.Debug("memory from Alloc is not exported", "err", err)
		}
	}
	if r, ok := c.dev.(registrar); ok {
		r.keepMemory(s.mem)
	}
	return View[T](s.mem)[:n:n], nil
}

// Free gives back memory from Alloc, named by the slice that Alloc returned or one
// that begins where it does. It is ErrArgument while a window lies in the memory. Ranks that
// have mapped the memory keep their mapping, but its pages are gone, unless the memory has been in a window or
// consists of huge pages of the system's pool: then the pages are freed when no rank has the memory mapped any more.
// If this rank touches the memory afterwards, that ends the process.
func Free[T Elem](c *Comm, buf []T) error {
	if cap(buf) == 0 {
		return nil
	}
	m := &c.world.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	start := uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	at := slices.IndexFunc(m.slabs, func(s *slab) bool { return s.start() == start })
	if at < 0 {
		return c.fail("free", ProcNull, AnyTag, ErrArgument, "not memory from Alloc, or freed already")
	}
	s := m.slabs[at]
	if s.windows > 0 {
		return c.fail("free", ProcNull, AnyTag, ErrArgument, fmt.Sprintf("%d windows or shared parts lie in it", s.windows))
	}
	m.slabs = slices.Delete(m.slabs, at, at+1)
	for mapper, handle := range s.handles {
		mapper.Unexport(handle)
	}
	if r, ok := c.dev.(registrar); ok {
		r.releaseMemory(s.mem)
	}
	s.empty()
	return s.close()
}

// registrar is a device whose library registers buffers with a network's cards and
// keeps those registrations for the next transfer.
type registrar interface {
	// keepMemory announces memory that is not unmapped before releaseMemory.
	keepMemory(mem []byte)
	// releaseMemory ends that, and all registrations in mem.
	releaseMemory(mem []byte)
}

// newSlab gets memory: huge pages if there are enough free ones, else
// ordinary pages that the kernel is asked to make huge ones of.
func newSlab(nBytes int) (*slab, error) {
	const huge = shm.HugePageBytes
	if nBytes >= huge {
		if s, err := makeSlab(nBytes, huge, shm.HugePages); err == nil {
			return s, nil
		}
	}
	s, err := makeSlab(nBytes, unix.Getpagesize(), shm.OrdinaryPages)
	if err == nil && nBytes >= huge {
		s.collapse()
	}
	return s, err
}

// collapse has the kernel make huge pages of the ordinary ones; for shared memory it does so by itself at few sites. When
// the kernel copies from or to another process, as MPI libraries have it do, it looks up every page: with huge pages 4 MiB
// took a quarter of the time. Where it cannot make any, for want of whole ones or before Linux 6.1, ordinary pages will do.
func (s *slab) collapse() {
	const tries = 3 // a page may be in use by the kernel for a moment
	for range tries {
		if !errors.Is(unix.Madvise(s.mem[:len(s.mem)/shm.HugePageBytes*shm.HugePageBytes], unix.MADV_COLLAPSE), unix.EAGAIN) {
			return
		}
	}
}

func makeSlab(nBytes, pageBytes int, pages shm.Pages) (*slab, error) {
	size := (nBytes + pageBytes - 1) / pageBytes * pageBytes
	fd, err := shm.CreateSegment("fisterra-slab", size, size, pages)
	if err != nil {
		return nil, err
	}
	mem, err := shm.Map(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &slab{mem: mem, fd: fd, pages: pages, handles: map[transport.Mapper][]byte{}}, nil
}

func (s *slab) start() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))) }

// empty gives the pages back although peers may keep them mapped, since peers learn of Free late or never. Their mappings
// stay, and read as zeros. Memory that has been in a window keeps its pages: peers may still use it (Window.Release). So
// do huge pages: the pool might have none left when a peer touches its mapping, which would end the peer.
func (s *slab) empty() {
	if len(s.handles) > 0 && !s.shared && s.pages == shm.OrdinaryPages {
		_ = unix.Fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(s.mem)))
	}
}

func (s *slab) close() error { return errors.Join(shm.Unmap(s.mem), unix.Close(s.fd)) }

// find returns the slab in which buf lies whole, and where.
func (m *memory) find(buf []byte) (s *slab, offsetBytes int) {
	if len(buf) == 0 {
		return nil, 0
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	for _, s := range m.slabs {
		if start >= s.start() && start-s.start()+uintptr(len(buf)) <= uintptr(len(s.mem)) {
			return s, int(start - s.start())
		}
	}
	return nil, 0
}

// export lets peers map the slab in which buf lies, for a window. It returns no handle for other
// memory.
func (m *memory) export(by transport.Mapper, buf []byte) (s *slab, handle []byte, offsetBytes int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, offsetBytes = m.find(buf); s == nil {
		return nil, nil, 0, nil
	}
	if handle, err = s.export(by); err != nil {
		return nil, nil, 0, err
	}
	s.windows++
	s.shared = true
	return s, handle, offsetBytes, nil
}

// export returns the handle by which peers import the slab. The memory is locked.
func (s *slab) export(by transport.Mapper) (handle []byte, err error) {
	if handle = s.handles[by]; handle == nil {
		if handle, err = by.Export(s.fd, s.mem); err == nil {
			s.handles[by] = handle
		}
	}
	return handle, err
}

// importFrom maps a peer's slab, once, for one more user.
func (m *memory) importFrom(ctx context.Context, by transport.Mapper, rank int, handle []byte) (*mapping, error) {
	name := imported{rank, string(handle)}
	if x := m.use(name, nil); x != nil {
		return x, nil
	}
	mem, err := by.Import(ctx, rank, handle)
	if err != nil {
		return nil, err
	}
	x := m.use(name, mem)
	if unsafe.SliceData(x.mem) != unsafe.SliceData(mem) { // another goroutine was quicker
		_ = shm.Unmap(mem)
	}
	return x, nil
}

// use adds a user to the mapping of that name. If there is none yet, mem becomes that mapping; without mem, use returns nil.
func (m *memory) use(name imported, mem []byte) *mapping {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.imports[name]
	if x == nil && mem == nil {
		return nil
	}
	if x == nil {
		if m.imports == nil {
			m.imports = map[imported]*mapping{}
		}
		x = &mapping{name: name, mem: mem}
		m.imports[name] = x
	}
	x.users++
	return x
}

// release ends what export and importFrom began.
func (h *heldMemory) release() {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.slab != nil {
		h.slab.windows--
	}
	for _, x := range h.mapped {
		m.drop(x)
	}
	h.slab, h.mapped = nil, nil
}

// drop ends one use of a mapping. The memory is locked.
func (m *memory) drop(x *mapping) {
	if x.users--; x.users == 0 {
		delete(m.imports, x.name)
		_ = shm.Unmap(x.mem) // a whole mapping: nothing can be wrong with it
	}
}
