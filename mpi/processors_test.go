package mpi

import (
	"maps"
	"strings"
	"testing"
)

func TestRanksPerCore(t *testing.T) {
	at := func(host, mask string) Member { return Member{Host: host, Processors: mask} }
	for _, c := range []struct {
		name    string
		members []Member
		want    map[string]float64
	}{
		{"nobody says", []Member{at("a", ""), at("b", "")}, map[string]float64{}},
		{"malformed", []Member{at("a", "0,1"), at("a", "xyz")}, map[string]float64{}},
		{"a core each", []Member{at("a", "3"), at("a", "3")}, map[string]float64{"a": 1}},
		{"bound to a core each", []Member{at("a", "1"), at("a", "2"), at("a", "4")}, map[string]float64{"a": 1}},
		{"bound to the same core", []Member{at("a", "8"), at("a", "8")}, map[string]float64{"a": 2}},
		{"twice as many", []Member{at("a", "3"), at("a", "3"), at("a", "3"), at("a", "3")}, map[string]float64{"a": 2}},
		{"idle cores", []Member{at("a", "ffff0000000000000000")}, map[string]float64{"a": 1}},
		{"two hosts", []Member{at("a", "1"), at("b", "1"), at("b", "1"), at("b", "1")}, map[string]float64{"a": 1, "b": 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ranksPerCore(c.members); !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestTakeTurns(t *testing.T) {
	at := func(host, mask string) Member { return Member{Host: host, Processors: mask} }
	for _, c := range []struct {
		name string
		a, b Member
		want bool
	}{
		{"on the only processor", at("a", "1"), at("a", "1"), true},
		{"bound to the same", at("a", "8"), at("a", "8"), true},
		{"bound to one each", at("a", "1"), at("a", "2"), false},
		{"one has a choice", at("a", "1"), at("a", "3"), false},
		{"two for both", at("a", "3"), at("a", "3"), false},
		{"of two hosts", at("a", "1"), at("b", "1"), false},
		{"one does not say", at("a", "1"), at("a", ""), false},
		{"malformed", at("a", "xyz"), at("a", "1"), false},
	} {
		if got := takeTurns([]Member{c.a, c.b}, 0, 1); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if takeTurns([]Member{at("a", "1")}, 0, 0) {
		t.Error("a rank takes turns with itself")
	}
}

func TestProcessorsOfThisProcess(t *testing.T) {
	mask := processors()
	if shares := ranksPerCore([]Member{{Host: "here", Processors: mask}}); shares["here"] != 1 {
		t.Errorf("one rank on mask %q: %v ranks per core", mask, shares["here"])
	}
}

// Ranks of a host get processors of their own wherever that is possible.
func TestProcessorOf(t *testing.T) {
	for _, c := range []struct {
		name  string
		masks string // of ranks of one host
		want  []int
	}{
		{"all may run everywhere", "f f f f", []int{0, 1, 2, 3}},
		{"bound", "4 1 8", []int{2, 0, 3}},
		{"by socket", "f f f0 f0", []int{0, 1, 4, 5}},
		{"by socket, cyclic", "f f0 f f0", []int{0, 4, 1, 5}},
		{"one has no choice", "3 1", []int{1, 0}},
		{"too few", "3 3 3", []int{0, 1, 0}},
		{"too few, one bound", "3 2 3 3", []int{0, 1, 0, 1}},
		{"not known", "3 ?", []int{-1, -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var members []Member
			for i, mask := range strings.Fields(c.masks) {
				// Between them ranks of another host.
				members = append(members,
					Member{Rank: 2 * i, Host: "here", Processors: strings.Trim(mask, "?")},
					Member{Rank: 2*i + 1, Host: "there", Processors: "1"})
			}
			for i, want := range c.want {
				if got := processorOf(2*i, members); got != want {
					t.Errorf("rank %d of the host: %d, want %d", i, got, want)
				}
			}
		})
	}
}
