package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// MemoryProvider is a Provider whose peers can pull exposed memory: it
// implements transport.Memory too.
type MemoryProvider struct{ *Provider }

// exposure is memory that a peer may pull. It is guarded by its owner's mailbox.
type exposure struct {
	peer    int
	buf     []byte
	readers int
	awaited bool // Withdraw was told false
}

// pull is a copy out of a peer's exposed memory.
type pull struct {
	reader *Provider
	owner  *Provider
	id     uint64
	dst    []byte
	offset int
	op     uint64
	state  lending // guarded by the reader's world lock
	cause  error
}

// Expose implements transport.Memory.
func (p *MemoryProvider) Expose(peer int, buf []byte) (transport.Key, bool) {
	var key transport.Key
	if p.dead.Load() != nil || p.gone.has(peer) {
		return key, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exposed == nil {
		p.exposed = make(map[uint64]*exposure)
	}
	p.keys++
	p.exposed[p.keys] = &exposure{peer: peer, buf: buf}
	binary.LittleEndian.PutUint64(key[0:], p.keys)
	binary.LittleEndian.PutUint64(key[8:], uint64(p.rank))
	binary.LittleEndian.PutUint64(key[16:], uint64(len(buf)))
	return key, true
}

// Pull implements transport.Memory.
func (p *MemoryProvider) Pull(peer int, key transport.Key, dst []byte, op uint64) transport.Outcome {
	f := p.fabric
	if p.dead.Load() != nil || p.gone.has(peer) {
		return transport.Gone
	}
	x := &pull{reader: p.Provider, owner: &f.ranks[peer], id: binary.LittleEndian.Uint64(key[0:]), dst: dst, op: op}
	p.spoken.set(peer)
	p.keep(op, &operation{peer: peer, pull: x})
	if f.virtual != nil {
		f.virtual.request(x)
		return transport.Sent
	}
	p.tell(f.now(p.Provider)+f.delay(peer, p.rank, uint64(op)), &note{pull: x})
	return transport.Sent
}

// Withdraw implements transport.Memory.
func (p *MemoryProvider) Withdraw(peer int, key transport.Key) bool {
	id := binary.LittleEndian.Uint64(key[0:])
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.exposed[id]
	if x == nil || x.peer != peer {
		return true
	}
	if x.readers > 0 {
		x.awaited = true
		return false
	}
	delete(p.exposed, id)
	return true
}

// recall is Provider.recall for a pull.
func (x *pull) recall(err error) bool {
	switch x.state {
	case lendingIdle, lendingAwaited:
		x.state = lendingOver
		return true
	case lendingRead:
		x.state, x.cause = lendingRecall, err
	}
	return false
}

// fetch copies the next chunk of a pull.
func (p *Provider) fetch(s transport.Sink, n *note, room *int) int {
	x := n.pull
	if x.state != lendingIdle || p.dead.Load() != nil {
		return 0
	}
	if p.fabric.severed(p.rank, x.owner.rank) {
		x.state = lendingAwaited
		return 0
	}
	length := min(len(x.dst)-x.offset, *room)
	if v := p.fabric.virtual; v != nil {
		var ok bool
		if length, ok = v.chargeCopy(x); !ok {
			p.tell(p.fabric.now(p), n)
			return 1
		}
	}
	*room -= length
	err := x.copyChunk(s, length)
	if err == nil && x.offset < len(x.dst) {
		p.tell(p.fabric.now(p), n)
		return 1
	}
	x.state = lendingOver
	delete(p.ops, x.op)
	s.Complete(x.op, err)
	return 1
}

func (x *pull) copyChunk(s transport.Sink, length int) error {
	owner := x.owner
	owner.mu.Lock()
	m := owner.exposed[x.id]
	if m == nil || m.peer != x.reader.rank || m.awaited || len(m.buf) < x.offset+length || owner.dead.Load() != nil {
		owner.mu.Unlock()
		return fmt.Errorf("%w: %d B from byte %d of rank %d's", ErrWithdrawn, length, x.offset, owner.rank)
	}
	m.readers++
	owner.mu.Unlock()

	x.state = lendingRead
	if owner.fabric.carries(len(m.buf)) {
		copyBytes(s, x.dst[x.offset:x.offset+length], m.buf[x.offset:])
	}
	x.offset += length

	owner.mu.Lock()
	m.readers--
	wanted := m.awaited
	owner.calm.Broadcast()
	owner.mu.Unlock()
	if wanted {
		owner.ring(owner.fabric.now(x.reader))
	}
	if x.state == lendingRecall {
		return x.cause
	}
	x.state = lendingIdle
	return nil
}

// copyBytes copies for a pull, whose memory nobody gives back before the provider is done with it.
func copyBytes(s transport.Sink, dst, src []byte) {
	if len(dst) < outsideBytes {
		copy(dst, src)
		return
	}
	s.Outside(func() { copy(dst, src) })
}
