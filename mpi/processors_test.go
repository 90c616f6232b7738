package mpi

import (
	"maps"
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

func TestProcessorsOfThisProcess(t *testing.T) {
	mask := processors()
	if shares := ranksPerCore([]Member{{Host: "here", Processors: mask}}); shares["here"] != 1 {
		t.Errorf("one rank on mask %q: %v ranks per core", mask, shares["here"])
	}
}
