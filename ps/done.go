package ps

// doneBoard is a server's record of which workers have finished: a bitmap, so that a worker that says DONE twice
// counts once, and the missing workers can be named.
type doneBoard struct {
	done   []bool
	lost   []bool
	status []int32
}

func newDoneBoard(workers int) *doneBoard {
	return &doneBoard{done: make([]bool, workers), lost: make([]bool, workers), status: make([]int32, workers)}
}

// arrive records a DONE and reports whether it is the worker's first.
func (b *doneBoard) arrive(worker int, status int32) bool {
	if b.done[worker] {
		return false
	}
	b.done[worker] = true
	b.status[worker] = status
	return true
}

// lose records that a worker will not say anything any more, and reports whether that is a new loss. A worker that
// was done before it was lost has finished its work: that is no loss.
func (b *doneBoard) lose(worker int) bool {
	if b.done[worker] || b.lost[worker] {
		return false
	}
	b.lost[worker] = true
	return true
}

// failed reports whether a worker is done with a status other than 0.
func (b *doneBoard) failed(worker int) bool { return b.done[worker] && b.status[worker] != 0 }

// missing lists the workers that have neither finished nor been lost.
func (b *doneBoard) missing() []int {
	var m []int
	for w := range b.done {
		if !b.done[w] && !b.lost[w] {
			m = append(m, w)
		}
	}
	return m
}

// complete reports whether nobody is missing.
func (b *doneBoard) complete() bool { return len(b.missing()) == 0 }

// arrivals is how many workers have said DONE, without those that had been counted as lost before, and those that
// came again afterwards.
func (b *doneBoard) arrivals() int {
	n := 0
	for w := range b.done {
		if b.done[w] && !b.lost[w] {
			n++
		}
	}
	return n
}

// roll records which workers have come to a barrier. It is complete when every worker that is still there has come.
type roll struct {
	here []bool
}

func newRoll(workers int) *roll { return &roll{here: make([]bool, workers)} }

// complete reports whether all workers have come, but for those that gone excuses.
func (r *roll) complete(gone func(worker int) bool) bool { return len(r.missing(gone)) == 0 }

// missing lists the workers that the barrier still waits for.
func (r *roll) missing(gone func(worker int) bool) []int {
	var m []int
	for w, h := range r.here {
		if !h && !gone(w) {
			m = append(m, w)
		}
	}
	return m
}
