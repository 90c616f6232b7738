package collective

import "time"

// How long it takes to write a piece that others have read tells how far the ranks are from
// each other: each line of it comes back from their caches, and they may be on different sockets, or on a
// virtual machine move there. Near each other, two copies through pieces beat one by the kernel; far apart
// they take up to ten times longer.
//
// All ranks must do a collective in the same way. So each votes in its slots, and
// all count the votes of the same turn.

const (
	// slowMeetings in a row make a rank vote for far: an interrupt slows one.
	slowMeetings = 3
	// While the ranks are far, so many long collectives in a row are direct before one goes through pieces again, to see
	// how far they are: few at first, and twice as many each time.
	fewMeetings, farMeetings = 16, 128
	// paceBytes is the least that has to be written for the time to tell anything.
	paceBytes = 16 << 10
)

// pace is what long collectives have shown of how far the ranks are from each other.
type pace struct {
	kernel   float64 // nanoseconds in which the kernel copies a byte
	quickest float64 // nanoseconds a byte in which this rank wrote its quickest step of this meeting; 0: none yet
	slow     int     // meetings in a row that were slow, at most slowMeetings
	far      bool    // as the ranks have agreed
	row      int     // length of the row of long collectives that are direct
	left     int     // how many of these are still to come
}

// note takes the time in which n bytes were written to a piece. A step that was interrupted does not matter, since only the
// quickest counts.
func (p *pace) note(took time.Duration, n int) {
	if n < paceBytes {
		return
	}
	if t := float64(took.Nanoseconds()) / float64(n); p.quickest == 0 || t < p.quickest {
		p.quickest = t
	}
}

// judge ends a meeting.
func (p *pace) judge() {
	switch {
	case p.quickest == 0:
	case p.quickest <= p.kernel:
		p.slow = 0
	case p.slow < slowMeetings:
		p.slow++
	}
	p.quickest = 0
}

// Votes of a rank, which are added up over the ranks. They share a word with the number of the call, which is above them.
const (
	farVote    = 1       // the others are far
	heapVote   = 1 << 5  // this rank's buffers were not from mpi.Alloc, in long collectives
	mappedVote = 1 << 10 // they were
	shortVotes = 10      // heapVote and mappedVote for short collectives stand so many bits higher

	votesBase   = heapVote / farVote // more than there are ranks
	votesMask   = 1<<numberShift - 1
	numberShift = 32
)

// some reports whether there was such a vote.
func some(votes, vote uint64) bool { return votes/vote%votesBase > 0 }

// vote is this rank's vote on how far the others are.
func (p *pace) vote() uint64 {
	if p.slow == slowMeetings {
		return farVote
	}
	return 0
}

// direct reports whether the next long collective goes without pieces.
func (p *pace) direct() bool {
	switch {
	case !p.far:
		p.row, p.left = 0, 0
		return false
	case p.row == 0:
		p.row, p.left = fewMeetings, fewMeetings
	case p.left == 0:
		p.row = min(2*p.row, farMeetings)
		p.left = p.row
		return false
	}
	p.left--
	return true
}
