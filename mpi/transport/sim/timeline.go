package sim

// event is something that happens at a point of virtual time.
type event struct {
	at     int64
	seq    uint64
	kind   eventKind
	pledge uint32
	rank   *Provider // eventResume
	sent   *message  // eventInject, eventReach: this or pull
	pull   *pull
}

type eventKind uint8

const (
	eventResume eventKind = iota // a rank goes on
	eventInject                  // a payload enters its node's adapter
	eventReach                   // a payload reaches the other node's adapter
)

// route is where an event's payload goes from and to, and its length.
func (e *event) route() (from, to, sizeBytes int) {
	if x := e.pull; x != nil {
		return x.owner.rank, x.reader.rank, len(x.dst)
	}
	return e.sent.from.rank, e.sent.to.rank, e.sent.size
}

// queued reports whether the payload waits for what other ranks have given to the adapter before.
func (e *event) queued() bool {
	if x := e.pull; x != nil {
		return len(x.dst) > packetBytes
	}
	return e.sent.queued
}

// timeline is a heap of events by (at, seq) with four children to a node:
// half as deep as a binary one, and the children share cache lines.
type timeline []event

func (q timeline) before(a, b *event) bool {
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (q *timeline) push(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !h.before(&e, &h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	*q = h
}

func (q *timeline) pop() event {
	h := *q
	top := h[0]
	last := len(h) - 1
	e := h[last]
	h[last] = event{}
	h = h[:last]
	*q = h
	if last == 0 {
		return top
	}
	i := 0
	for {
		first := 4*i + 1
		if first >= last {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, last); c++ {
			if h.before(&h[c], &h[least]) {
				least = c
			}
		}
		if !h.before(&h[least], &e) {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = e
	return top
}
