package shm

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/fisterra-hpc/fisterra/internal/procmem"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// errWithdrawn: the peer took its memory back before it was pulled. Only a peer that ends, or that has lost this rank, does
// so: any other waits to hear that nobody pulls.
var errWithdrawn = fmt.Errorf("%w: it withdrew the memory", transport.ErrGone)

// exposures are what a peer may pull from this rank.
type exposures struct {
	table   *[slots]slot // shared
	list    [slots]exposure
	live    int
	free    []uint16
	zombies []uint16 // withdrawn, but the peer has not let go of the slot
}

type exposure struct {
	ep       *endpoint
	slot     *slot
	gen      uint32
	live     bool
	helping  bool // the peer has asked for help
	inflight int  // copies under way
	buf      []byte
	dst      uintptr // where the peer pulls it to
	n        int     // how much of it
	into     part    // the peer's destination, if it is mapped here
}

// pull is a transfer from a peer's memory into this rank's.
type pull struct {
	ep       *endpoint
	slot     *slot
	op       uint64
	dst      []byte
	src      uintptr
	from     part // the peer's memory, if it is mapped here
	pace     pace
	units    uint32
	done     uint32 // units copied by this rank
	inflight int
	shared   bool // the peer is asked to copy a part
	err      error
}

// A key is the exposed memory's address and length, and the generation and
// number of its slot.
func (e *exposure) key(number uint16) (k transport.Key) {
	binary.NativeEndian.PutUint64(k[0:], uint64(procmem.AddressOf(e.buf)))
	binary.NativeEndian.PutUint64(k[8:], uint64(len(e.buf)))
	binary.NativeEndian.PutUint32(k[16:], e.gen)
	binary.NativeEndian.PutUint16(k[20:], number)
	return k
}

func keyParts(k transport.Key) (src uintptr, n uint64, gen uint32, number uint16) {
	return uintptr(binary.NativeEndian.Uint64(k[0:])), binary.NativeEndian.Uint64(k[8:]),
		binary.NativeEndian.Uint32(k[16:]), binary.NativeEndian.Uint16(k[20:])
}

// Expose lets a peer pull buf, if the peer has it mapped or the kernel lets the two processes copy each other's memory (see
// Path). It refuses before the two have met, and while another way is quicker.
func (p *Provider) Expose(peer int, buf []byte) (transport.Key, bool) {
	ep := p.endpoint(peer)
	if ep.state != up {
		ep.meet()
		return transport.Key{}, false
	}
	if len(buf) == 0 || ep.slotless {
		return transport.Key{}, false
	}
	at := spot{}
	if len(buf) >= mappedFrom {
		at = ep.shown(buf)
	}
	if mapped := at.segment != 0; mapped && ep.diverts(len(buf)) || !mapped && !ep.copyable(len(buf)) {
		return transport.Key{}, false
	}
	if ep.exposures == nil && !ep.openExposures() {
		return transport.Key{}, false
	}
	x := ep.exposures
	if len(x.free) == 0 {
		x.reap()
	}
	if len(x.free) == 0 {
		return transport.Key{}, false
	}
	number := x.free[len(x.free)-1]
	x.free = x.free[:len(x.free)-1]
	e := &x.list[number]
	*e = exposure{ep: ep, slot: &x.table[number], gen: e.gen + 1, live: true, buf: buf}
	x.live++
	e.slot.helped.Store(0)
	e.slot.read.Store(0)
	e.slot.at, e.slot.pace = at, paceUnknown
	e.slot.state.Store(uint64(exposed(e.gen)))
	return e.key(number), true
}

// copyable reports whether the kernel's copies are to move n bytes of this rank's memory to the peer.
func (ep *endpoint) copyable(n int) bool {
	switch {
	case !ep.vm:
		return false
	case !ep.p.habit.paced:
		return true
	case ep.p.crowded: // what fits into the ring at once waits for nobody's turn there
		return n >= streamFrom
	}
	return n >= farPullBytes && ep.out.crossing.Around()
}

// openExposures backs the slots with memory, when they are first used.
func (ep *endpoint) openExposures() bool {
	at := slotsAt + ep.direction()*slotsBytes
	if err := back(ep.link.memory, at, slotsBytes); err != nil {
		ep.slotless = true
		ep.p.cfg.Log.Warn("shm: large messages are copied twice", "peer", ep.rank, "err", err)
		return false
	}
	x := &exposures{table: pairSlots(ep.link.mem, ep.direction())}
	for i := range slots {
		x.free = append(x.free, uint16(slots-1-i))
	}
	ep.exposures = x
	return true
}

// reap finds slots that the peer has let go of.
func (x *exposures) reap() {
	x.zombies = slices.DeleteFunc(x.zombies, func(number uint16) bool {
		if claim(x.list[number].slot.state.Load()).phase() != phaseFree {
			return false
		}
		x.free = append(x.free, number)
		return true
	})
}

// shut lets nobody claim any more of the memory, and reports whether neither rank copies out of it any more.
func (e *exposure) shut() bool {
	for {
		c := claim(e.slot.state.Load())
		switch c.phase() {
		case phaseFree:
			return e.inflight == 0
		case phaseExposed:
			if e.slot.state.CompareAndSwap(uint64(c), 0) {
				return e.inflight == 0
			}
		case phasePulling:
			e.slot.state.CompareAndSwap(uint64(c), uint64(c.closed()))
		case phaseClosed:
			return e.inflight == 0 && (e.slot.read.Load() == uint64(c.front()) || e.ep.hungup)
		}
	}
}

// returned: the peer has stopped reading memory that was to be withdrawn.
func (e *exposure) returned() bool { return e.ep.state == up && e.shut() }

// Withdraw ends an exposure.
func (p *Provider) Withdraw(peer int, key transport.Key) bool {
	ep := p.endpoint(peer)
	_, _, gen, number := keyParts(key)
	if ep.exposures == nil || int(number) >= slots {
		return true
	}
	x := ep.exposures
	e := &x.list[number]
	if !e.live || e.gen != gen {
		return true
	}
	if !e.shut() {
		if !slices.Contains(p.awaited, e) {
			p.awaited = append(p.awaited, e)
		}
		return false
	}
	p.awaited = slices.DeleteFunc(p.awaited, func(a *exposure) bool { return a == e })
	if claim(e.slot.state.Load()).phase() == phaseFree {
		ep.out.freshness.judge(e.slot.pace)
	}
	ep.link.sharing.drop(e.into)
	e.live, e.buf, e.into = false, nil, part{}
	x.live--
	p.helps = slices.DeleteFunc(p.helps, func(h *exposure) bool { return h == e })
	if claim(e.slot.state.Load()).phase() == phaseFree {
		x.free = append(x.free, number)
	} else {
		x.zombies = append(x.zombies, number)
	}
	return true
}

func (ep *endpoint) closeExposures() {
	if ep.exposures == nil {
		return
	}
	for i := range ep.exposures.list {
		if e := &ep.exposures.list[i]; e.live {
			e.shut()
		}
	}
	ep.p.helps = slices.DeleteFunc(ep.p.helps, func(h *exposure) bool { return h.ep == ep })
	ep.p.awaited = slices.DeleteFunc(ep.p.awaited, func(a *exposure) bool { return a.ep == ep })
}

func (ep *endpoint) exposuresQuiet() bool {
	if ep.exposures == nil {
		return true
	}
	for i := range ep.exposures.list {
		if e := &ep.exposures.list[i]; e.live && !e.shut() {
			return false
		}
	}
	return true
}

// Pull copies exposed memory into dst, together with the peer.
func (p *Provider) Pull(peer int, key transport.Key, dst []byte, op uint64) transport.Outcome {
	ep := p.endpoint(peer)
	if ep.state != up || ep.broken != nil {
		return transport.Gone
	}
	src, n, gen, number := keyParts(key)
	if int(number) >= slots || n > 1<<62 {
		p.complete(op, fmt.Errorf("the key of rank %d names slot %d and %d bytes: %w", peer, number, n, errMalformed))
		return transport.Sent
	}
	dst = dst[:min(uint64(len(dst)), n)]
	pl := p.newPull()
	*pl = pull{ep: ep, slot: &pairSlots(ep.link.mem, 1-ep.direction())[number], op: op, dst: dst, src: src, units: units(len(dst))}
	start := ends(phasePulling, 0, pl.units)
	if !pl.slot.state.CompareAndSwap(uint64(exposed(gen)), uint64(start)) {
		p.freePulls = append(p.freePulls, pl)
		p.complete(op, errWithdrawn)
		return transport.Sent
	}
	p.pulls = append(p.pulls, pl)
	ep.pulls++
	pl.from = ep.link.sharing.use(pl.slot.at, len(dst))
	if !pl.from.there() && !ep.vm {
		pl.shut(fmt.Errorf("%d bytes at %d of segment %d of rank %d: %w", len(dst), pl.slot.at.offsetBytes, pl.slot.at.segment, peer, errMalformed))
		return transport.Sent
	}
	to := spot{}
	if len(dst) >= helpBytes {
		to = ep.shown(dst)
	}
	pl.shared = ep.shares(pl, to)
	if pl.shared && (ep.out.next < ep.out.limit || ep.refresh()) {
		c := ep.nextCell()
		c[1] = uint64(number) | uint64(gen)<<32
		c[2], c[3] = uint64(procmem.AddressOf(dst)), uint64(len(dst))
		c[4], c[5] = to.segment, to.offsetBytes
		ep.post(c, word0(0, formHelp, 0))
	}
	return transport.Sent
}

// shares reports whether the peer is asked to copy a part of a pull to a place. A short pull is not worth that. Where ranks
// share processors, this rank would only take the core from the peer to wait for it. And a peer to which this rank has
// exposed memory has as much to copy itself.
func (ep *endpoint) shares(pl *pull, to spot) bool {
	if ep.p.crowded || ep.exposures != nil && ep.exposures.live > 0 {
		return false
	}
	switch n := len(pl.dst); {
	case to.segment != 0 && pl.from.there():
		return n >= mappedHelpBytes
	case to.segment != 0 || !pl.from.there():
		return n >= helpBytes
	default:
		return ep.vm && n >= mixedHelpBytes
	}
}

func (p *Provider) newPull() *pull {
	last := len(p.freePulls) - 1
	if last < 0 {
		return &pull{}
	}
	pl := p.freePulls[last]
	p.freePulls = p.freePulls[:last]
	return pl
}

// help takes a peer's request to share the work of a pull from this rank.
func (ep *endpoint) help(shared *cell) error {
	c := *shared // the peer can write there meanwhile
	number, gen := uint32(c[1]), uint32(c[1]>>32)
	if number >= slots || ep.exposures == nil {
		return fmt.Errorf("a request for help with slot %d: %w", number, errMalformed)
	}
	e := &ep.exposures.list[number]
	if !e.live || e.gen != gen || e.helping {
		return nil // it is over already
	}
	if c[3] > uint64(len(e.buf)) {
		return fmt.Errorf("a request for help with %d bytes of %d: %w", c[3], len(e.buf), errMalformed)
	}
	e.into = ep.link.sharing.use(spot{c[4], c[5]}, int(c[3]))
	if !e.into.there() && !ep.vm {
		return fmt.Errorf("a request for help with %d bytes at %d of segment %d: %w", c[3], c[5], c[4], errMalformed)
	}
	e.helping, e.dst, e.n = true, uintptr(c[2]), int(c[3])
	ep.p.helps = append(ep.p.helps, e)
	return nil
}

// Abandon gives up a SendFrom or a Pull.
func (p *Provider) Abandon(op uint64) {
	for _, pl := range p.pulls {
		if pl.op == op {
			pl.shut(errAbandoned)
			return
		}
	}
	for _, ep := range p.live {
		if ep.abandonStream(op) {
			return
		}
	}
}

// shut stops a pull: what is claimed is finished, the rest is not begun.
func (pl *pull) shut(err error) {
	if pl.err == nil {
		pl.err = err
	}
	for {
		c := claim(pl.slot.state.Load())
		if c.phase() != phasePulling || pl.slot.state.CompareAndSwap(uint64(c), uint64(c.closed())) {
			return
		}
	}
}

func (p *Provider) closePulls(ep *endpoint, err error) {
	for _, pl := range p.pulls {
		if pl.ep == ep {
			pl.shut(err)
		}
	}
}

// over reports whether nobody writes to the pull's memory any more, and how it ended. done counts the units that this rank has
// copied, from the front, and helped those of the peer, from the back.
func (pl *pull) over() (bool, error) {
	if pl.inflight > 0 {
		return false, nil
	}
	c := claim(pl.slot.state.Load())
	helped := pl.slot.helped.Load()
	mine, theirs := pl.done == c.front(), helped&^helpFailed == uint64(pl.units-c.back())
	switch {
	case c.phase() == phasePulling && c.front() == c.back() && mine && theirs:
		// All units are claimed, and copied by whoever claimed them.
		if helped&helpFailed != 0 && pl.err == nil {
			pl.err = fmt.Errorf("rank %d could not write to this process", pl.ep.rank)
		}
	case pl.ep.hungup:
		// The peer has no thread left: it writes no more, whatever it had claimed.
		if pl.err == nil {
			pl.err = errHangup
		}
	case c.phase() == phaseClosed && theirs:
		// Closed early: what the peer had claimed is written; what this rank had is, too, since inflight is 0.
		if pl.err == nil {
			pl.err = errWithdrawn
		}
	default:
		return false, nil
	}
	return true, pl.err
}

// settle reports pulls that are over.
func (p *Provider) settle() {
	p.pulls = slices.DeleteFunc(p.pulls, func(pl *pull) bool {
		over, err := pl.over()
		if !over {
			return false
		}
		pl.slot.pace = pl.pace
		pl.slot.state.Store(0)
		pl.ep.link.sharing.drop(pl.from)
		pl.ep.pulls--
		if err != nil {
			pl.ep.notify() // the peer may wait for its memory
		}
		p.complete(pl.op, err)
		*pl = pull{}
		p.freePulls = append(p.freePulls, pl)
		return true
	})
}
