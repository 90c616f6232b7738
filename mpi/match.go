package mpi

// The matching core: which receive takes which message. It does no I/O, takes no lock and
// reads no clock; the engine calls it with the world's lock held.
//
// MPI's rule is that messages from one sender on one communicator match
// receives in the order in which both were issued. Exact receives and
// arrivals meet in bins hashed by (context, source, tag); wildcard receives
// stand in a list of their own, and sequence numbers tell which of two
// candidates came first.

const matchBins = 64

// envelope is what matching looks at. Source is a world rank.
type envelope struct {
	context uint32
	source  int32
	tag     int32
}

func (v envelope) bin() uint32 {
	h := v.context*0x9e3779b1 ^ uint32(v.source)*0x85ebca6b ^ uint32(v.tag)*0xc2b2ae35
	return h >> 26 & (matchBins - 1)
}

func (v envelope) wild() bool { return v.source == AnySource || v.tag == AnyTag }

// accepts reports whether a receive with this envelope takes a message with that one.
func (v envelope) accepts(m envelope) bool {
	return v.context == m.context &&
		(v.source == m.source || v.source == AnySource) &&
		(v.tag == m.tag || v.tag == AnyTag)
}

// arrival is a message that came before its receive was posted.
type arrival struct {
	env     envelope
	bytes   int    // of the whole message
	payload []byte // eager: a copy owned by the engine
	sender  *op    // message of this rank to itself, not yet copied
	token   uint64 // rendezvous: the sender's operation, else 0
	key     []byte // rendezvous by pull: the exposed memory's key (in payload)

	seqNext, seqPrev *arrival // all, in order of arrival
	binNext, binPrev *arrival // those of one bin, likewise
}

// eager: the message itself is here.
func (a *arrival) eager() bool { return a.token == 0 && a.sender == nil }

// opQueue holds receives by number.
type opQueue struct{ head, tail *op }

// insert puts o before those with higher numbers: mostly there are none.
func (q *opQueue) insert(o *op) {
	last := q.tail
	if last != nil && last.seq > o.seq {
		q.insertEarlier(o)
		return
	}
	q.append(o)
}

// append puts o last.
func (q *opQueue) append(o *op) {
	last := q.tail
	if q.tail = o; last == nil {
		q.head = o
	} else {
		last.next = o
	}
}

// insertEarlier is insert where some have higher numbers.
func (q *opQueue) insertEarlier(o *op) {
	at := &q.head
	for (*at).seq < o.seq {
		at = &(*at).next
	}
	o.next, *at = *at, o
}

// remove takes o out, which follows before; nil: it is the first.
func (q *opQueue) remove(before, o *op) {
	if before == nil {
		q.head = o.next
	} else {
		before.next = o.next
	}
	if o.next == nil {
		q.tail = before
	}
	o.next = nil
}

// before is the receive that o follows; nil: o is the first.
func (q *opQueue) before(o *op) (b *op) {
	for x := q.head; x != o; x = x.next {
		b = x
	}
	return b
}

// matcher holds posted receives and unexpected messages.
type matcher struct {
	seq    uint64
	exact  [matchBins]opQueue
	wild   opQueue
	posted int

	first, last *arrival
	bins        [matchBins]struct{ first, last *arrival }
	unexpected  int
}

// number gives a receive its place in the order of matching.
func (m *matcher) number(o *op) {
	m.seq++
	o.seq = m.seq
}

// post queues a receive by its number: at the end, unless it is queued again because its message was taken back. Call
// find first: a message that is already here must be taken before.
func (m *matcher) post(o *op) {
	m.posted++
	m.queueOf(o).insert(o)
}

// postNewest is post for the receive that was numbered last, whose envelope is v and not wild.
func (m *matcher) postNewest(o *op, v envelope) {
	m.posted++
	m.exact[v.bin()].append(o)
}

func (m *matcher) queueOf(o *op) *opQueue {
	if o.env.wild() {
		return &m.wild
	}
	return &m.exact[o.env.bin()]
}

// take finds the oldest posted receive that accepts a message, removes and
// returns it; nil if there is none.
func (m *matcher) take(v envelope) *op {
	bin := &m.exact[v.bin()]
	var before *op
	best := bin.head
	for best != nil && best.env != v {
		before, best = best, best.next
	}
	if m.wild.head != nil {
		return m.takeWild(v, best)
	}
	if best != nil {
		bin.remove(before, best)
		m.posted--
	}
	return best
}

// tookFirst removes the first n receives of q, which have got messages; rest follows them.
func (m *matcher) tookFirst(q *opQueue, n int, rest *op) {
	if q.head = rest; rest == nil {
		q.tail = nil
	}
	m.posted -= n
}

// takeWild is take where wildcard receives are posted; best is the oldest exact receive for v, or nil.
func (m *matcher) takeWild(v envelope, best *op) *op {
	for o := m.wild.head; o != nil; o = o.next {
		if best != nil && best.seq < o.seq {
			break
		}
		if o.env.accepts(v) {
			best = o
			break
		}
	}
	if best != nil {
		m.withdraw(best)
	}
	return best
}

// withdraw removes a posted receive. It walks past all receives in the same queue that were posted before.
func (m *matcher) withdraw(o *op) {
	q := m.queueOf(o)
	q.remove(q.before(o), o)
	m.posted--
}

// hold keeps a message for a receive to come.
func (m *matcher) hold(a *arrival) {
	a.seqPrev, a.seqNext = m.last, nil
	if m.last == nil {
		m.first = a
	} else {
		m.last.seqNext = a
	}
	m.last = a
	b := &m.bins[a.env.bin()]
	a.binPrev, a.binNext = b.last, nil
	if b.last == nil {
		b.first = a
	} else {
		b.last.binNext = a
	}
	b.last = a
	m.unexpected++
}

// find returns the oldest held message that a receive with envelope v would
// take, and leaves it where it is.
func (m *matcher) find(v envelope) *arrival {
	if m.unexpected == 0 {
		return nil
	}
	if !v.wild() {
		a := m.bins[v.bin()].first
		for a != nil && a.env != v {
			a = a.binNext
		}
		return a
	}
	a := m.first
	for a != nil && !v.accepts(a.env) {
		a = a.seqNext
	}
	return a
}

// release removes a held message.
func (m *matcher) release(a *arrival) {
	if a.seqPrev == nil {
		m.first = a.seqNext
	} else {
		a.seqPrev.seqNext = a.seqNext
	}
	if a.seqNext == nil {
		m.last = a.seqPrev
	} else {
		a.seqNext.seqPrev = a.seqPrev
	}
	b := &m.bins[a.env.bin()]
	if a.binPrev == nil {
		b.first = a.binNext
	} else {
		a.binPrev.binNext = a.binNext
	}
	if a.binNext == nil {
		b.last = a.binPrev
	} else {
		a.binNext.binPrev = a.binPrev
	}
	a.seqNext, a.seqPrev, a.binNext, a.binPrev = nil, nil, nil, nil
	m.unexpected--
}
