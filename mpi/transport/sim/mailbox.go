package sim

import (
	"math"
	"sync"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// mailbox is where a rank's arrivals wait for its Poll. Peers put things in,
// so it has its own lock, which nobody holds while a Sink is called.
type mailbox struct {
	mu    sync.Mutex
	calm  *sync.Cond // signalled when a chunk of lent or exposed memory has been read
	due   agenda
	seq   uint64
	links map[int32]*link // incoming, by sender; made by the first message
}

// link is what is under way from one rank to another. At most one entry of
// the agenda refers to it, for the message at its head; none does while that
// message is being delivered, so that nothing overtakes it.
type link struct {
	from       int32
	scheduled  bool // in the agenda
	busy       bool // its head is being delivered
	refused    bool // the sender was told Full
	closed     bool // the sender has hung up
	head, tail *message
	bytes      int    // under way, with envelopes
	queued     int    // messages on the wire that a later one must not pass
	lastDue    int64  // of the newest message
	sent       uint64 // messages so far
}

// message is one message under way.
type message struct {
	next   *message
	due    int64
	from   *Provider
	to     *Provider
	header transport.Header
	size   int
	offset int    // of the payload placed so far
	data   []byte // the fabric's copy, or the sender's memory while op is not released
	copied bool   // data was the sender's and is the fabric's now
	own    []byte // memory for data of a message that lends none, kept from use to use
	charge int    // what it counts against Config.QueueBytes
	queued bool   // on the wire behind those of other ranks: it is long or follows a long one
	hangUp error  // not a message: the sender's end of the connection closed

	op    uint64 // of SendFrom
	lent  bool   // data is the sender's memory
	state lending
	cause error // lendingRecall: why
}

// message returns a message for Send, new or used before. Those of SendFrom are not used again, since their senders keep them
// too.
func (f *Fabric) message() *message {
	m, _ := f.free.Get().(*message)
	if m == nil {
		return new(message)
	}
	return m
}

// forget takes a delivered message back.
func (f *Fabric) forget(m *message) {
	if m.lent || m.hangUp != nil || cap(m.own) > keepBytes {
		return
	}
	*m = message{own: m.own[:0]}
	f.free.Put(m)
}

// keepBytes is the largest payload whose memory is kept for the next message.
const keepBytes = 64 << 10

// lending is what has become of memory that a sender lent to the fabric.
// It is guarded by the receiver's mailbox.
type lending uint8

const (
	lendingIdle    lending = iota
	lendingRead            // the receiver copies out of it right now
	lendingRecall          // it does, and must give it back when it has finished the chunk
	lendingOver            // completion is on its way: nobody touches the memory again
	lendingAwaited         // the message was dropped on a cut link: nobody reads the memory, and nobody reports its completion
)

// note is an arrival that is not a message.
type note struct {
	op   uint64
	err  error
	pull *pull // copy its next chunk
	died error // the rank itself has been killed
}

// entry of the agenda: a link whose head is due, or a note.
type entry struct {
	due  int64
	seq  uint64
	link *link
	note *note
}

// agenda is a binary heap by (due, seq).
type agenda []entry

func (a agenda) before(i, j int) bool {
	return a[i].due < a[j].due || a[i].due == a[j].due && a[i].seq < a[j].seq
}

func (a *agenda) push(e entry) {
	*a = append(*a, e)
	h := *a
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.before(i, up) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (a *agenda) pop() entry {
	h := *a
	top := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h[last] = entry{}
	h = h[:last]
	*a = h
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h.before(child+1, child) {
			child++
		}
		if !h.before(child, i) {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	return top
}

const never = math.MaxInt64

// nextDue is when the next arrival is due. The mailbox is locked.
func (b *mailbox) nextDue() int64 {
	if len(b.due) == 0 {
		return never
	}
	return b.due[0].due
}

// take removes the next arrival if it is due.
func (b *mailbox) take(now int64) (entry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.due) == 0 || b.due[0].due > now {
		return entry{}, false
	}
	e := b.due.pop()
	if e.link != nil {
		e.link.scheduled, e.link.busy = false, true
	}
	return e, true
}

// schedule puts an entry into the agenda. The mailbox is locked.
func (b *mailbox) schedule(e entry) {
	b.seq++
	e.seq = b.seq
	b.due.push(e)
}

// link returns the incoming link from a rank. The mailbox is locked.
func (b *mailbox) link(from int) *link {
	l := b.links[int32(from)]
	if l == nil {
		if b.links == nil {
			b.links = make(map[int32]*link)
		}
		l = &link{from: int32(from)}
		b.links[int32(from)] = l
	}
	return l
}

// follow puts a message behind those under way between the same ranks. The
// mailbox is locked.
func (l *link) follow(m *message) {
	if m.size > packetBytes || l.queued > 0 {
		m.queued = true
		l.queued++
	}
}

// append queues a message that has crossed the fabric and is due at m.due or
// when its predecessor is, if that is later. The mailbox is locked.
func (b *mailbox) append(l *link, m *message) {
	if m.queued {
		m.queued = false
		l.queued--
	}
	m.due = max(m.due, l.lastDue)
	l.lastDue = m.due
	if l.tail == nil {
		l.head = m
	} else {
		l.tail.next = m
	}
	l.tail = m
	if !l.scheduled && !l.busy {
		l.scheduled = true
		b.schedule(entry{due: l.head.due, link: l})
	}
}

// resume ends the delivery of a link's head, removing and returning it if it
// is finished, and reports whether a refused sender may try again.
func (b *mailbox) resume(l *link, finished bool, queueBytes int) (gone *message, retry bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.busy = false
	if m := l.head; finished && m != nil {
		gone = m
		if l.head = m.next; l.head == nil {
			l.tail = nil
		}
		m.next = nil
		l.bytes -= m.charge
		if l.refused && l.bytes <= queueBytes/2 {
			l.refused = false
			retry = true
		}
	}
	if l.head != nil {
		l.scheduled = true
		b.schedule(entry{due: l.head.due, link: l})
	}
	return gone, retry
}
