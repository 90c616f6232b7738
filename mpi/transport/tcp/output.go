package tcp

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

const (
	// chunkBytes is the most that one chunk of a Data payload holds. Where only this end sends, it is also the most that is
	// written before the connection is read again.
	chunkBytes = 4 << 20
	// burstBytes is the most that is written before the connection is read again where both ends send: more would pass
	// through cold memory in the kernel. A window of 64 exchanges of 4 MiB took 750 µs each in bursts of 4 MiB, and 520 µs in
	// bursts of 1 MiB. In one direction, bursts of 4 MiB took 5 % less time.
	burstBytes = 1 << 20
	// bothBytes read since the last burst show that both ends send.
	bothBytes = 64 << 10
	// inlineBytes: payloads up to this size are copied behind their header, which
	// is quicker than a gather.
	inlineBytes = 4 << 10
	// stageBytes bounds what a blocked connection keeps of small messages.
	stageBytes = 2*EagerBytes + 4<<10
	maxItems   = 256
	maxGather  = 16
)

// conn is one connection; all of it belongs to the holder of the world's lock.
type conn struct {
	p       *Provider
	peer    int
	fd      int
	index   int // in p.conns
	closed  bool
	blocked bool   // counted in p.blocked
	watched uint32 // events of the socket that the Set watches for
	broken  error  // why sending failed; the peer is lost once everything that came in has been read
	came    int    // bytes read since the last burst
	in      input
	out     output
}

// output is what a connection has accepted and the socket not yet taken: items in
// order, the bytes of staged ones one after the other in stage.
type output struct {
	items []item
	first int
	stage []byte
	taken int // bytes of stage already written
}

// item is a piece of the outgoing stream: staged bytes, or memory of the
// engine's that has to be reported complete.
type item struct {
	staged int // bytes of the stage; 0: the item is memory, as the fields below say

	payload  []byte
	off      int // next byte of payload to write
	chunkEnd int // end of the chunk that has been begun
	word     [wordBytes]byte
	wordLeft int  // bytes of word to write before payload[off:chunkEnd]
	chunked  bool // Data
	cut      bool // ends with a word of zero after the chunk
	op       uint64
	hasOp    bool
}

func (o *output) pending() bool { return o.first < len(o.items) }

func (o *output) push(it item) {
	if o.first > 0 && len(o.items) == cap(o.items) {
		n := copy(o.items, o.items[o.first:])
		clear(o.items[n:])
		o.items, o.first = o.items[:n], 0
	}
	o.items = append(o.items, it)
}

// room reports whether n more bytes can be staged and one more item queued.
func (c *conn) room(n int) bool {
	o := &c.out
	if len(o.items)-o.first >= maxItems {
		return false
	}
	if o.stage == nil {
		o.stage = c.p.pools.get(stageBytes)[:0]
	}
	if len(o.stage)+n > stageBytes && o.taken > 0 {
		o.stage = o.stage[:copy(o.stage, o.stage[o.taken:])]
		o.taken = 0
	}
	return len(o.stage)+n <= stageBytes
}

// putStaged queues bytes; there must be room.
func (c *conn) putStaged(parts ...[]byte) {
	o := &c.out
	n := 0
	for _, b := range parts {
		o.stage = append(o.stage, b...)
		n += len(b)
	}
	if last := len(o.items) - 1; last >= o.first && o.items[last].staged > 0 {
		o.items[last].staged += n
	} else if n > 0 {
		o.push(item{staged: n})
	}
}

func (p *Provider) Send(peer int, h *transport.Header, payload []byte) transport.Outcome {
	l := &p.links[peer]
	c := l.conn
	if c == nil {
		return p.dial(peer)
	}
	if c.broken != nil {
		return transport.Gone
	}
	n := packHeader(p.head[:], h, uint64(len(payload)))
	if h.Kind == transport.Data && len(payload) > 0 {
		binary.LittleEndian.PutUint32(p.head[n:], uint32(len(payload)))
		n += wordBytes
	}
	head := p.head[:n]
	if c.out.pending() {
		if !c.room(n + len(payload)) {
			return transport.Full
		}
		c.putStaged(head, payload)
		return transport.Sent
	}
	var wrote int
	var errno syscall.Errno
	if len(payload) <= inlineBytes {
		wrote, errno = sendOnce(c.fd, append(head, payload...))
	} else {
		setIovec(&p.iov[0], head)
		setIovec(&p.iov[1], payload)
		wrote, errno = sendvOnce(c.fd, p.iov[:2])
		p.iov[1].Base = nil
	}
	if errno != 0 {
		if wrote = 0; !c.again(errno) {
			return transport.Gone
		}
	}
	if wrote == n+len(payload) {
		return transport.Sent
	}
	c.room(n + len(payload)) // takes a stage; an empty one has room for any message
	if wrote < n {
		c.putStaged(head[wrote:], payload)
	} else {
		c.putStaged(payload[wrote-n:])
	}
	c.block()
	return transport.Sent
}

func (p *Provider) SendFrom(peer int, h *transport.Header, payload []byte, op uint64) transport.Outcome {
	l := &p.links[peer]
	c := l.conn
	if c == nil {
		return p.dial(peer)
	}
	if c.broken != nil {
		return transport.Gone
	}
	if h.Kind != transport.Data && len(payload) > EagerBytes {
		panic("tcp: a payload above EagerBytes must be Data")
	}
	n := packHeader(p.head[:], h, uint64(len(payload)))
	if !c.room(n) {
		return transport.Full
	}
	idle := !c.out.pending()
	c.putStaged(p.head[:n])
	it := item{payload: payload, op: op, hasOp: true, chunked: h.Kind == transport.Data}
	if !it.chunked {
		it.chunkEnd = len(payload)
	}
	c.out.push(it)
	if idle {
		c.flush()
	}
	return transport.Sent
}

// Abandon ends the use of the memory of a SendFrom. What the peer has not been
// promised by a chunk's word is not sent: the message becomes whole there only if its last chunk had been begun.
func (p *Provider) Abandon(op uint64) {
	for _, c := range p.conns {
		for i := c.out.first; i < len(c.out.items); i++ {
			it := &c.out.items[i]
			if !it.hasOp || it.op != op {
				continue
			}
			rest := it.payload[it.off:it.chunkEnd]
			if it.wordLeft == wordBytes { // not even begun
				rest, it.wordLeft = nil, 0
			}
			it.cut = it.chunked && it.off+len(rest) < len(it.payload)
			it.payload = append([]byte(nil), rest...)
			it.off, it.chunkEnd, it.hasOp = 0, len(rest), false
			p.done = append(p.done, completion{op, errAbandoned})
			return
		}
	}
}

// again tells a full socket from a broken one.
func (c *conn) again(errno syscall.Errno) bool {
	if errno == unix.EAGAIN || errno == unix.EINTR || errno == unix.ENOBUFS || errno == unix.ENOMEM {
		return true
	}
	if c.broken == nil {
		c.broken = socketError(errno)
		c.block() // so that Poll looks at it
	}
	return false
}

// block has the rank woken when the socket takes more.
func (c *conn) block() {
	if c.blocked || c.closed {
		return
	}
	c.blocked = true
	c.p.blocked++
	if err := c.rewatch(); err != nil && c.broken == nil {
		c.broken = err
	}
}

func (c *conn) unblock() {
	if !c.blocked || c.closed || c.broken != nil {
		return
	}
	c.blocked = false
	if err := c.rewatch(); err != nil {
		c.broken, c.blocked = err, true // so that Poll looks at it
		return
	}
	c.p.blocked--
}

// burst is how much is written now, before the connection is read again.
func (c *conn) burst() int {
	came := c.came
	c.came = 0
	if c.blocked && came < bothBytes { // not the first burst, and less has come meanwhile than where both ends send
		return chunkBytes
	}
	return burstBytes
}

// flush writes one burst, or as much of it as the socket takes, and returns the bytes written.
func (c *conn) flush() int {
	total := 0
	for most := c.burst(); total < most && c.out.pending() && c.broken == nil; {
		iov, asked := c.gather(most - total)
		wrote, errno := sendvOnce(c.fd, iov)
		clear(c.p.iov[:len(iov)])
		if errno != 0 {
			c.again(errno)
			break
		}
		c.advance(wrote)
		total += wrote
		if wrote < asked {
			break
		}
	}
	if c.out.pending() {
		c.block()
	} else {
		c.unblock()
	}
	return total
}

// gather points the provider's io vector at the next most bytes of the stream, or at some more where that reaches the end of
// a chunk.
func (c *conn) gather(most int) ([]unix.Iovec, int) {
	o, iov := &c.out, c.p.iov[:0]
	add := func(b []byte) {
		iov = iov[:len(iov)+1]
		setIovec(&iov[len(iov)-1], b)
	}
	total, at := 0, o.taken
	for i := o.first; i < len(o.items) && len(iov) < maxGather-1 && total < most; i++ {
		it := &o.items[i]
		if it.staged > 0 {
			add(o.stage[at : at+it.staged])
			at += it.staged
			total += it.staged
			continue
		}
		it.begin()
		if it.wordLeft > 0 {
			add(it.word[wordBytes-it.wordLeft:])
			total += it.wordLeft
		}
		if it.off < it.chunkEnd {
			n := it.chunkEnd - it.off
			if room := max(1, most-total); n > room+room/4 {
				n = room
			}
			add(it.payload[it.off:][:n])
			total += n
			if it.off+n < it.chunkEnd {
				break
			}
		}
		if it.chunkEnd < len(it.payload) || it.cut {
			break
		}
	}
	return iov, total
}

// begin starts the next chunk if the last one has been written.
func (it *item) begin() {
	if it.wordLeft > 0 || it.off < it.chunkEnd {
		return
	}
	if it.chunked && it.off < len(it.payload) {
		it.chunkEnd = min(it.off+chunkBytes, len(it.payload))
		binary.LittleEndian.PutUint32(it.word[:], uint32(it.chunkEnd-it.off))
		it.wordLeft = wordBytes
	} else if it.cut {
		it.cut = false
		it.word = [wordBytes]byte{}
		it.wordLeft = wordBytes
	}
}

// advance accounts for n bytes written.
func (c *conn) advance(n int) {
	o := &c.out
	for o.pending() {
		it := &o.items[o.first]
		k := min(n, it.staged)
		it.staged -= k
		o.taken += k
		n -= k
		k = min(n, it.wordLeft)
		it.wordLeft -= k
		n -= k
		k = min(n, it.chunkEnd-it.off)
		it.off += k
		n -= k
		if it.staged > 0 || it.wordLeft > 0 || it.off < len(it.payload) || it.cut {
			break
		}
		if it.hasOp {
			c.p.done = append(c.p.done, completion{it.op, nil})
		}
		*it = item{}
		o.first++
	}
	if o.taken == len(o.stage) {
		o.stage, o.taken = o.stage[:0], 0
	}
	if !o.pending() {
		o.items, o.first = o.items[:0], 0
		c.p.pools.put(o.stage)
		o.stage = nil
	}
}
