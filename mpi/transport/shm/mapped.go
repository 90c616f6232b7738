package shm

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/procmem"
)

// Between segments that both ranks have mapped, a large message is a copy that each rank makes in its own address space, with
// neither the kernel nor a ring in between. At the first message out of an exported segment, or into one, the rank offers the
// segment to the peer, and sends that message another way. The peer maps what it is offered, and says so.

const (
	// mappedFrom is the shortest message that takes less time so than eagerly.
	mappedFrom = 16 << 10
	// mappedHelpBytes: below this the puller copies alone.
	mappedHelpBytes = 128 << 10
	// mixedHelpBytes: likewise, where the peer could help only by copies of the kernel.
	mixedHelpBytes = 512 << 10
	// mostMapped bounds how many segments of a peer are mapped at the same time.
	mostMapped = 1024
	// populateBytes is the longest segment whose pages are all mapped at once.
	populateBytes = 64 << 20
)

// spot is where in an exported segment some memory lies. Segment 0 is none.
type spot struct {
	segment     uint64
	offsetBytes uint64
}

// area is the memory of an exported segment.
type area struct {
	start   uintptr
	n       uintptr
	segment uint64
}

func areaOf(mem []byte, segment uint64) area {
	return area{uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), segment}
}

// areas are those of all exported segments, sorted by address. They are looked up without a lock, so a change makes a new
// slice.
type areas []area

// find says where in an exported segment buf lies whole.
func (as areas) find(buf []byte) spot {
	b := areaOf(buf, 0)
	i, found := as.search(b.start)
	if !found {
		i--
	}
	if i < 0 || b.start-as[i].start+b.n > as[i].n {
		return spot{}
	}
	return spot{as[i].segment, uint64(b.start - as[i].start)}
}

func (as areas) search(start uintptr) (int, bool) {
	return slices.BinarySearchFunc(as, start, func(a area, start uintptr) int { return cmp.Compare(a.start, start) })
}

func (as areas) with(a area) *areas {
	i, _ := as.search(a.start)
	return new(slices.Insert(slices.Clone(as), i, a))
}

func (as areas) without(a area) *areas {
	return new(slices.DeleteFunc(slices.Clone(as), func(b area) bool { return b == a }))
}

// sharing is what two ranks have mapped of each other for their messages.
type sharing struct {
	mu      sync.Mutex
	offered map[uint64]bool // segments of this rank: whether the peer has mapped them
	mapped  map[uint64]*mapped
	closed  bool
}

// mapped is a segment of a peer in this process.
type mapped struct {
	mem       []byte
	number    uint64
	users     int  // transfers that may reach into it
	withdrawn bool // to be unmapped after them
}

// part is a part of a segment, in use.
type part struct {
	of  *mapped
	mem []byte
}

// there reports whether p is a part at all.
func (p part) there() bool { return p.of != nil }

// shown is where buf lies in a segment that the peer has mapped. A segment with buf that the peer has not been offered is
// offered now.
func (ep *endpoint) shown(buf []byte) spot {
	at := ep.p.exports.areas.Load().find(buf)
	if at.segment == 0 || ep.p.cfg.Copies == 2 {
		return spot{}
	}
	s := &ep.link.sharing
	s.mu.Lock()
	done, offered := s.offered[at.segment]
	s.mu.Unlock()
	switch {
	case done:
		return at
	case !offered:
		ep.p.exports.offer(ep.link, at.segment)
	}
	return spot{}
}

// offer sends a segment to the peer, unless the socket is full.
func (x *exports) offer(l *link, number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.segments[number]
	if !ok {
		return
	}
	s := &l.sharing
	s.mu.Lock() // taken, which handles the peer's answer, waits
	defer s.mu.Unlock()
	b := binary.BigEndian.AppendUint64([]byte{packetOffer}, number)
	err := sendPacket(l.conn, binary.BigEndian.AppendUint64(b, uint64(len(e.mem))), e.fd)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ETOOMANYREFS) || s.closed {
		return // the next message tries again
	}
	if s.offered == nil {
		s.offered = map[uint64]bool{}
	}
	s.offered[number] = false
}

// withdraw tells the peer that a segment is exported no more, if that was offered.
func (l *link) withdraw(number uint64) {
	s := &l.sharing
	s.mu.Lock()
	_, offered := s.offered[number]
	delete(s.offered, number)
	s.mu.Unlock()
	if offered {
		_ = sendPacket(l.conn, binary.BigEndian.AppendUint64([]byte{packetWithdraw}, number)) // on failure it stays mapped until the link ends
	}
}

// taken notes that the peer has mapped a segment, unless that has been withdrawn meanwhile.
func (s *sharing) taken(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, offered := s.offered[number]; offered {
		s.offered[number] = true
	}
}

// accept maps a segment that the peer offers, and tells the peer. Where either fails, messages go other ways.
func (p *Provider) accept(l *link, number, sizeBytes uint64, fd int) error {
	mem, err := mapSegment(fd, int(sizeBytes))
	if err != nil {
		p.cfg.Log.Debug("shm: memory that a peer offers is not mapped", "err", err)
		return nil
	}
	if len(mem) <= populateBytes {
		procmem.Populate(mem)
	}
	if !l.sharing.keep(number, mem) {
		return Unmap(mem)
	}
	err = sendPacket(l.conn, binary.BigEndian.AppendUint64([]byte{packetTaken}, number))
	if errors.Is(err, unix.EAGAIN) {
		l.sharing.forget(number)
		return nil
	}
	return err
}

// keep adds a segment, if there is room for it.
func (s *sharing) keep(number uint64, mem []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.mapped) >= mostMapped || s.mapped[number] != nil {
		return false
	}
	if s.mapped == nil {
		s.mapped = map[uint64]*mapped{}
	}
	s.mapped[number] = &mapped{mem: mem, number: number}
	return true
}

// use views n bytes of a segment of the peer, until drop. There is no part if they are not mapped.
func (s *sharing) use(at spot, n int) part {
	if at.segment == 0 {
		return part{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.mapped[at.segment]
	if m == nil || m.withdrawn || at.offsetBytes > uint64(len(m.mem)) || uint64(n) > uint64(len(m.mem))-at.offsetBytes {
		return part{}
	}
	m.users++
	return part{m, m.mem[at.offsetBytes:][:n:n]}
}

// drop ends the use of a part, if there is one.
func (s *sharing) drop(p part) {
	if !p.there() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.of.users--
	s.tidy(p.of)
}

// forget ends the peer's offer of a segment.
func (s *sharing) forget(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.mapped[number]; m != nil {
		m.withdrawn = true
		s.tidy(m)
	}
}

// tidy unmaps a segment that nobody needs any more.
func (s *sharing) tidy(m *mapped) {
	if m.withdrawn && m.users == 0 && s.mapped[m.number] == m {
		delete(s.mapped, m.number)
		_ = Unmap(m.mem) // a whole mapping: nothing can be wrong with it
	}
}

// close unmaps everything, and lets nothing more be mapped. No copy is under way.
func (s *sharing) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, m := range s.mapped {
		_ = Unmap(m.mem)
	}
	s.mapped, s.offered = nil, nil
}
