package mpi

import (
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// nativeTags translates tags where the library's largest tag is below MaxTag (it is 32767 at
// least; MPICH 4 has 2²⁸−1). The topmost tags, which layers above take for
// themselves, become the library's topmost. Tags up to low stay the same, and those in between
// are refused.
type nativeTags struct {
	low   int // the largest tag that is the same
	shift int // from the library's topmost tags to ours
}

// topTags is how many tags there are at the top, MaxTag included.
const topTags = 16

func newNativeTags(bound int) nativeTags {
	if bound >= MaxTag {
		return nativeTags{low: MaxTag}
	}
	return nativeTags{low: bound - topTags, shift: MaxTag - bound}
}

// out is a tag in the library's numbers, or one that it refuses.
func (t nativeTags) out(tag int) int {
	switch {
	case tag <= t.low:
		return tag
	case tag > MaxTag-topTags:
		return tag - t.shift
	}
	return MaxTag + 1
}

// in is a tag of the library's in ours.
func (t nativeTags) in(tag int) int {
	if tag > t.low {
		return tag + t.shift
	}
	return tag
}

func (t nativeTags) detail(tag int, library string) string {
	return fmt.Sprintf("tag %d, with %s tags run from 0 to %d and from %d to %d", tag, library, t.low, MaxTag-topTags+1, MaxTag)
}

// status translates a status of the library's.
func (d *nativeDevice) status(s native.Status) Status {
	return Status{Source: s.Source, Tag: d.tags.in(s.Tag), Bytes: s.Bytes}
}

// MaxTag is the largest tag up to which all tags may be used on this
// communicator: mpi.MaxTag, or less where the system's MPI library has fewer. The 16 tags that
// end with mpi.MaxTag may be used with any library. The same on all ranks.
func (c *Comm) MaxTag() int {
	if d, ok := c.dev.(*nativeDevice); ok {
		return d.tags.low
	}
	return MaxTag
}
