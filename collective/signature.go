package collective

import (
	"encoding/binary"
	"fmt"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/kernel"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// signature is what a rank called: it stands in front of every short message
// of a collective, so that ranks that called different things notice.
//
//	0  magic     2 B
//	2  kind      1 B  its lower half; the upper is the phase
//	3  type      1 B
//	4  op        1 B  (collectives without an operator: 0xff)
//	5  plan      1 B  position of the planner in its catalog
//	6  root      2 B  its lower half
//	8  count     6 B  elements, or a hash of the counts with the upper bit
//	14 trail     2 B  of a hash of all calls before
type signature [signatureBytes]byte

const (
	signatureBytes = 16
	// signedBytes is the longest payload that carries a signature.
	signedBytes = 2048

	signatureMagic = 0xf157
	noOp           = 0xff
	badArguments   = 0xfe // as a plan: the call was rejected
	memoryCode     = 0xfd // as a plan: MemoryPlan
	directCode     = 0xfc // as a plan: DirectPlan

	hashedCount = 1 << 47         // the count is a hash
	countMask   = hashedCount - 1 // of the count, or of the hash
)

// phase is a part of what the program called that is a collective of its own. All parts have the number and the signature
// of the whole call, since the program knows of no parts.
type phase uint8

const (
	whole     phase = iota
	comparing       // the ranks compare what they called
	counting        // and what they send each other
	mapping         // they vote on the arena
	scaling         // of a reproducible sum: they agree on the powers of two
	adding          // and add the integers
	phases          // how many there are
)

func (p phase) String() string {
	return [...]string{"", ", comparing calls", ", comparing counts", ", making shared memory", ", scaling", ", adding"}[p]
}

// kind is the collective by which a part of the called one is done.
func (p phase) kind(called plan.Kind) plan.Kind {
	switch p {
	case comparing:
		return plan.Barrier
	case counting:
		return plan.Alltoall
	case mapping, scaling:
		return plan.Allreduce
	}
	return called
}

// called is the collective that the program called.
func (q *call) called() plan.Kind {
	if q.phase != whole {
		return q.asked.kind()
	}
	return q.kind
}

// sign is the signature of a call, which may be a part of another.
func (q *call) sign(planner int) signature {
	s := q.asked
	if q.phase == whole {
		s = q.key.sign(planner)
	}
	s[2] |= uint8(q.phase) << 4
	s[5] = uint8(planner)
	s.setTrail(q.trail)
	return s
}

// signatureBy is sign by an entry's plan.
func (q *call) signatureBy(e *entry) signature {
	if q.phase == whole {
		var s signature
		s.set(&e.signature, uint64(q.trail)<<48)
		return s
	}
	return q.sign(int(e.signature[5]))
}

// sign is the signature of a call, but for its trail.
func (k *key) sign(planner int) signature {
	var s signature
	binary.LittleEndian.PutUint16(s[0:], signatureMagic)
	s[2], s[3], s[4], s[5] = uint8(k.kind), uint8(k.typ.kind), noOp, uint8(planner)
	if k.kind.Reduces() {
		s[4] = k.op.code()
	}
	if k.kind == plan.Barrier {
		s[3] = 0
	}
	if k.kind.Rooted() {
		binary.LittleEndian.PutUint16(s[6:], uint16(k.root))
	}
	count := uint64(k.count) & countMask
	switch {
	case k.kind == plan.Alltoall && k.hash != 0:
		count = hashedCount // every rank has counts of its own: see exchange
	case k.hash != 0:
		count = k.hash&countMask | hashedCount
	}
	binary.LittleEndian.PutUint64(s[8:], count)
	return s
}

// readSignature finds the signature at the beginning of a message.
func readSignature(b []byte) (s signature, ok bool) {
	if len(b) < signatureBytes || binary.LittleEndian.Uint16(b) != signatureMagic {
		return s, false
	}
	s = signature(b[:signatureBytes])
	return s, s.kind() <= plan.Exscan && s.phase() < phases
}

func (s signature) kind() plan.Kind { return plan.Kind(s[2] & 0xf) }
func (s signature) phase() phase    { return phase(s[2] >> 4) }

// count is a number of elements, or hashedCount and a hash.
func (s signature) count() uint64 {
	return binary.LittleEndian.Uint64(s[8:]) & (hashedCount | countMask)
}

// differs reports whether ranks that started collectives of the same number called different things. Ranks that called the
// same may be in different parts of it, but not if one has rejected the call: that one never comes to any part.
func (s signature) differs(other signature) bool {
	if s.phase() != other.phase() && (s[5] == badArguments) == (other[5] == badArguments) {
		s[2], s[5] = uint8(s.kind()), 0
		other[2], other[5] = uint8(other.kind()), 0
	}
	return s != other
}

// String is what the call looked like, as in "allreduce of 4 float32, sum".
func (s signature) String() string {
	kind := s.kind()
	if kind == plan.Barrier {
		return "barrier"
	}
	text := kind.String()
	count := s.count()
	switch {
	case count&hashedCount == 0:
		text += fmt.Sprintf(" of %d %v", count, kernel.Type(s[3]))
	case kind == plan.Alltoall:
		text += fmt.Sprintf(" of blocks of %v with counts of its own", kernel.Type(s[3]))
	default:
		text += fmt.Sprintf(" of blocks of %v with counts of hash %#x", kernel.Type(s[3]), count&countMask)
	}
	switch {
	case s[4] == noOp:
	case s[4] == exactCode:
		text += ", reproducible sum"
	case s[4] >= userCode:
		text += fmt.Sprintf(", operator %#x of its own", s[4])
	default:
		text += fmt.Sprintf(", %v", kernel.Op(s[4]))
	}
	if kind.Rooted() {
		text += fmt.Sprintf(", root %d", binary.LittleEndian.Uint16(s[6:]))
	}
	if s[5] == badArguments {
		text += ", with arguments that make no sense"
	}
	return text
}

// planName is the name of the plan by which a call, or its part, is done.
func (s signature) planName() string {
	switch s[5] {
	case memoryCode:
		return MemoryPlan
	case directCode:
		return DirectPlan
	case noOp:
		return LibraryPlan
	}
	if of := plan.Planners(s.phase().kind(s.kind())); int(s[5]) < len(of) {
		return of[s[5]].Name
	}
	return fmt.Sprint(s[5]) // this rank has no such plan
}

// compare says how a peer's call differs from this rank's.
func (s signature) compare(mine int, peer int, host string, other signature) error {
	a, b, why := s.String(), other.String(), ""
	if a == b {
		a += fmt.Sprintf(" by %s%v", s.planName(), s.phase())
		b += fmt.Sprintf(" by %s%v", other.planName(), other.phase())
		why = "; all ranks must use the same Config, and all the blocking or all the nonblocking form"
	}
	return &mismatchError{text: fmt.Sprintf("rank %d called %s, rank %d (%s) called %s%s", mine, a, peer, host, b, why)}
}

// outOfStep says that two ranks have met with calls of different numbers.
func outOfStep(s signature, seq uint32, mine int, other signature, theirs uint32, peer int, host string) error {
	return &mismatchError{text: fmt.Sprintf("rank %d is at #%d, %v, rank %d (%s) at #%d, %v: one of them had a call before that was refused or that the other did not make",
		mine, seq, s, peer, host, theirs, other)}
}

// mismatchError is mpi.ErrMismatch with a text that can be sent to the other ranks.
type mismatchError struct{ text string }

func (e *mismatchError) Error() string { return mpi.ErrMismatch.Error() + ": " + e.text }
func (e *mismatchError) Unwrap() error { return mpi.ErrMismatch }
