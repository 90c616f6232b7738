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
func TestHomesOf(t *testing.T) {
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
				if got := homesOf("here", members).of(2 * i); got != want {
					t.Errorf("rank %d of the host: %d, want %d", i, got, want)
				}
			}
		})
	}
}

func TestHomes(t *testing.T) {
	var members []Member
	for r, host := range []string{"here", "there", "here", "here", "there"} {
		members = append(members, Member{Rank: r, Host: host, Processors: "3"})
	}
	h := homesOf("here", members) // 0, 2 and 3 on processors 0, 1 and 0
	for _, c := range []struct {
		a, b int
		want bool
	}{{0, 2, true}, {2, 0, true}, {0, 3, false}, {3, 2, true}, {0, 0, false}, {0, 1, false}, {1, 2, false}, {1, 4, false}} {
		if got := h.apart(c.a, c.b); got != c.want {
			t.Errorf("ranks %d and %d apart: %v", c.a, c.b, got)
		}
	}
	if got := h.most(); got != 2 {
		t.Errorf("%d ranks share a processor, want 2", got)
	}
	if got := homes(nil).most(); got != 0 {
		t.Errorf("%d ranks share a processor that is not known", got)
	}
}
