package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// group is what one launch of one program measures: an operation at several sizes.
type group struct {
	op        string
	transport string // shm, tcp, or the library that moves the messages of Fisterra, too
	ranks     int
	sizes     []int // bytes, in the operation's own sense (see README.md)
}

func (g group) name() string { return fmt.Sprintf("%s/%s/%d", g.op, g.transport, g.ranks) }

// pointToPoint tells p2p.c's operations from collectives.c's.
func (g group) pointToPoint() bool {
	switch g.op {
	case "latency", "fresh", "bw", "bibw", "mbw_mr", "pairs":
		return true
	}
	return false
}

// over reports whether Fisterra's messages go by the library, which is then its only peer.
func (g group) over(library string) bool { return g.transport == library }

// overLibrary reports whether Fisterra's messages go by any library.
func (g group) overLibrary() bool { return g.transport != "shm" && g.transport != "tcp" }

func (g group) sizeList() string {
	text := make([]string, len(g.sizes))
	for i, s := range g.sizes {
		text[i] = strconv.Itoa(s)
	}
	return strings.Join(text, ",")
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// groups is everything that can be measured, in the order of the table, with collectives over memory at each of the numbers
// of ranks.
func groups(ranks []int) []group {
	messages := []int{8, 4 * kib, 64 * kib, mib, 4 * mib}
	vectors := []int{8, 4 * kib, 64 * kib, 4 * mib, 64 * mib}
	collectives := []string{"allreduce", "bcast", "allgather", "alltoall", "reduce_scatter"}
	// Of the others three lengths tell enough: a group takes as long as its sizes are many.
	few := []int{8, 64 * kib, 4 * mib}
	others := []string{"reduce", "gather", "scatter", "scan"}
	all := []group{
		{"latency", "shm", 2, messages},
		{"fresh", "shm", 2, messages},
		{"bw", "shm", 2, messages},
		{"mbw_mr", "shm", 2, []int{8}},
		{"latency", "tcp", 2, messages},
		{"bw", "tcp", 2, messages},
		{"pairs", "shm", 8, []int{8, 64 * kib}}, // more ranks than cores
		{"barrier", "shm", 8, []int{0}},
	}
	for _, n := range ranks {
		for _, op := range collectives {
			all = append(all, group{op, "shm", n, vectors})
		}
		if n != 8 { // has its barrier above
			all = append(all, group{"barrier", "shm", n, []int{0}})
		}
	}
	for _, op := range others {
		all = append(all, group{op, "shm", ranks[len(ranks)-1], few}, group{op, "tcp", 2, few})
	}
	for _, op := range collectives {
		all = append(all, group{op, "tcp", 2, vectors})
	}
	all = append(all, group{"barrier", "tcp", 2, []int{0}})
	// What Go costs over a library's messages, and what its plans gain over the library's collectives.
	for _, library := range []string{"openmpi", "mpich"} {
		all = append(all, group{"latency", library, 2, messages}, group{"allreduce", library, 2, vectors})
	}
	return split(all)
}

// split gives sizes up to mostShort a group of their own, so that a launch is over before the processors are moved.
func split(all []group) []group {
	var parts []group
	for _, g := range all {
		short, long := g, g
		n, _ := slices.BinarySearch(g.sizes, mostShort+1)
		short.sizes, long.sizes = g.sizes[:n], g.sizes[n:]
		for _, part := range []group{short, long} {
			if len(part.sizes) > 0 {
				parts = append(parts, part)
			}
		}
	}
	return parts
}

// short reports whether all messages are.
func (g group) short() bool { return g.sizes[len(g.sizes)-1] <= mostShort }

// mostShort is the largest size in bytes whose time is that of exchanging lines more than that of copying.
const mostShort = 4 * kib

// rankCounts reads a list of numbers of ranks, which grow: a group is measured once.
func rankCounts(text string) ([]int, error) {
	var counts []int
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < 2 || len(counts) > 0 && n <= counts[len(counts)-1] {
			return nil, fmt.Errorf("%q is no number of ranks here: want growing numbers from 2 up, such as 2,4", field)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// selected keeps the groups whose name matches the expression, and the sizes up to most.
func selected(ranks []int, expression string, most int) ([]group, error) {
	re, err := regexp.Compile(expression)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	var kept []group
	for _, g := range groups(ranks) {
		if !re.MatchString(g.name()) {
			continue
		}
		var sizes []int
		for _, s := range g.sizes {
			if s <= most {
				sizes = append(sizes, s)
			}
		}
		if g.sizes = sizes; len(sizes) > 0 {
			kept = append(kept, g)
		}
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("-only %q -max %d leave nothing to measure; groups are OP/TRANSPORT/RANKS, such as %s",
			expression, most, groups(ranks)[0].name())
	}
	return kept, nil
}
