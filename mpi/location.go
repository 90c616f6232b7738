package mpi

import (
	"context"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// SharesMemory reports whether this rank and another can map each other's memory from Alloc; it is false for this rank
// itself. Both ranks get the same answer. Not collective.
func (c *Comm) SharesMemory(rank int) bool { return c.dev.mapperOf(int(c.group[rank])) != nil }

// Location says where in memory from Alloc a buffer lies, to the other ranks of its host.
type Location struct {
	Slab        uint64 // names one of the pieces of memory that the rank has from Alloc; 0: none
	OffsetBytes int
}

// Locate returns the location of buf. ok is false if buf is empty or no memory from Alloc, or if no
// rank could map it. It costs a search among the pieces of memory that Alloc has given
// out. Not collective; any goroutine may call it.
func Locate[T Elem](c *Comm, buf []T) (at Location, ok bool) {
	mapper := c.dev.mapper()
	if mapper == nil {
		return Location{}, false
	}
	m := &c.world.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	s, offset := m.find(Bytes(buf))
	if s == nil {
		return Location{}, false
	}
	handle, err := s.export(mapper)
	if err != nil || len(handle) > 8 {
		return Location{}, false
	}
	var b [8]byte
	copy(b[:], handle)
	return Location{nativeWord(b), offset}, true
}

// Mapping is memory that another rank of the host has from Alloc, as memory of this process.
type Mapping struct {
	memory *memory
	of     *mapping
}

// Map maps a rank's memory, named by the Slab of a Location that the rank got from Locate. It blocks until the rank has
// answered, which the rank does in the background, at most for as long as a handshake may take. After the rank has freed
// the memory, the mapping contains zeros, or what it contained. Not collective; any goroutine may call it.
func (c *Comm) Map(ctx context.Context, rank int, slab uint64) (*Mapping, error) {
	if rank < 0 || rank >= c.Size() {
		return nil, c.fail("map", ProcNull, AnyTag, ErrRank, c.rankRange(rank))
	}
	world := int(c.group[rank])
	mapper := c.dev.mapperOf(world)
	if mapper == nil {
		return nil, c.fail("map", rank, AnyTag, ErrTransport, "it shares no memory with this rank")
	}
	handle := nativeBytes(slab)
	m := &c.world.memory
	x, err := m.importFrom(ctx, mapper, world, handle[:])
	if err != nil {
		return nil, c.fail("map", rank, AnyTag, err, fmt.Sprintf("memory %d", slab))
	}
	return &Mapping{m, x}, nil
}

// Bytes is the whole of it. It must not be used after Release.
func (m *Mapping) Bytes() []byte { return m.of.mem }

// Release ends the use of the mapping. A second one does nothing.
func (m *Mapping) Release() {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if m.of != nil {
		m.memory.drop(m.of)
		m.of = nil
	}
}

// mapper is the provider that shares memory, if there is one.
func (e *engine) mapper() transport.Mapper {
	for _, p := range e.providers {
		if m, ok := p.(transport.Mapper); ok {
			return m
		}
	}
	return nil
}

// mapperOf is the mapper that reaches a rank.
func (e *engine) mapperOf(world int) transport.Mapper {
	if world == e.rank {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.route(world); r.provider >= 0 {
		m, _ := e.providers[r.provider].(transport.Mapper)
		return m
	}
	return nil
}
