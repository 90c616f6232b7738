package mpi

import "slices"

// What is remembered of communicators that have been freed here, while other members may still use theirs: messages on
// them are refused instead of kept, and survivors that ask about a Shrink are told what it decided.

// freedKept is how many freed communicators are remembered. No id is given twice, except that ids made by Shrink may
// collide. A message for a communicator that has been forgotten is kept, like one for a communicator yet to be made here.
const freedKept = 1 << 16

// freedComms holds the freed communicators by their even context ids. Guarded by the engine's lock.
type freedComms struct {
	decided map[uint32][]decision // by their Shrinks, if any
	order   []uint32              // a ring once it is full
	oldest  int
}

// decision is the outcome of a Shrink.
type decision struct {
	context, n uint32
	lost       []int // ranks of that communicator
}

func (f *freedComms) add(context uint32, decided []decision) {
	if f.decided == nil {
		f.decided = make(map[uint32][]decision)
	}
	f.decided[context] = decided
	if len(f.order) < freedKept {
		f.order = append(f.order, context)
		return
	}
	delete(f.decided, f.order[f.oldest])
	f.order[f.oldest] = context
	f.oldest = (f.oldest + 1) % freedKept
}

// has reports whether a communicator, or the one whose shadow it is, has been freed.
func (f *freedComms) has(context uint32) bool {
	_, ok := f.decided[context&^1]
	return ok
}

// decision is what the n-th Shrink of a freed communicator has decided.
func (f *freedComms) decision(context, n uint32) (lost []int, ok bool) {
	all := f.decided[context&^1]
	i := slices.IndexFunc(all, func(d decision) bool { return d.context == context && d.n == n })
	if i < 0 {
		return nil, false
	}
	return all[i].lost, true
}

// again forgets that a communicator with an id was freed: now there is another one with that id.
func (f *freedComms) again(context uint32) { delete(f.decided, context) }
