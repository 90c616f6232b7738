package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDistancesOfOnePlace(t *testing.T) {
	for _, tc := range []struct {
		a, b distance
		want bool
	}{{50, 50, true}, {50, 65, true}, {65, 50, true}, {26, 47, false}, {200, 50, false}, {0, 0, true}, {0, 50, false}} {
		if got := tc.a.like(tc.b); got != tc.want {
			t.Errorf("%d like %d: %v", tc.a, tc.b, got)
		}
	}
}

// A launch in which the processors moved is taken again, and begins when they are back.
func TestSteadyLaunch(t *testing.T) {
	g := group{"latency", "shm", 2, []int{8}}
	p := &program{name: "p", command: func(group, time.Duration) (args, env []string) {
		return []string{"echo", "latency 8 2 0.5 0.4 0.6 30"}, nil
	}}
	for name, tc := range map[string]struct {
		distances []distance // one after the other, and the last one for ever
		repeated  int
	}{
		"stays":           {[]distance{50}, 0},
		"unknown":         {[]distance{50, 0, 50}, 1}, // after one launch
		"moves meanwhile": {[]distance{51, 205, 205, 49, 52}, 1},
		"is away":         {[]distance{26, 205, 50}, 0},
		"moves twice":     {[]distance{50, 26, 50, 205, 50}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := &comparison{steadyTime: time.Minute, distance: func() distance {
				d := tc.distances[0]
				if len(tc.distances) > 1 {
					tc.distances = tc.distances[1:]
				}
				return d
			}}
			l, err := c.steadyLaunch(t.Context(), 50, p, g)
			if err != nil || len(l.rows) != 1 || c.moves.repeated != tc.repeated || c.moves.mixed != 0 {
				t.Errorf("%+v %v; moves %+v, want %d launches again", l, err, c.moves, tc.repeated)
			}
		})
	}
}

// Launches of long messages are taken as they come.
func TestLongMessagesAreNotTakenAgain(t *testing.T) {
	p := &program{name: "p", command: func(group, time.Duration) (args, env []string) {
		return []string{"echo", "latency 65536 2 0.5 0.4 0.6 30"}, nil
	}}
	c := &comparison{steadyTime: time.Minute, distance: func() distance {
		t.Error("asked how far apart the processors are")
		return 0
	}}
	if l, err := c.steadyLaunch(t.Context(), 50, p, group{"latency", "shm", 2, []int{64 * kib}}); err != nil || len(l.rows) != 1 {
		t.Errorf("%+v %v", l, err)
	}
}

// Processors that never return do not hold up the comparison, and it says so.
func TestSteadyLaunchGivesUp(t *testing.T) {
	g := group{"latency", "shm", 2, []int{8}}
	p := &program{name: "p", command: func(group, time.Duration) (args, env []string) {
		return []string{"echo", "latency 8 2 0.5 0.4 0.6 30"}, nil
	}}
	c := &comparison{distance: func() distance { return 205 }, steadyTime: 10 * time.Millisecond}
	c.moves.distances = []distance{50}
	l, err := c.steadyLaunch(t.Context(), 50, p, g)
	if err != nil || len(l.rows) != 1 || c.moves.mixed != 1 {
		t.Errorf("%+v %v; moves %+v", l, err, c.moves)
	}
	if text := c.moves.String(); !strings.Contains(text, "takes 50ns") || !strings.Contains(text, "in 1 it did all the same") {
		t.Errorf("moves: %s", text)
	}
}

// A round counts for no program if the processors moved in one of its launches: here in the second one of the first round.
func TestProgramsAreComparedOverTheSameRounds(t *testing.T) {
	var launches, looks int
	echo := func(name, first, later string) *program {
		var own int
		return &program{name: name, can: func(group) bool { return true }, command: func(group, time.Duration) (args, env []string) {
			launches++
			median := first
			if own++; own > 1 {
				median = later
			}
			return []string{"echo", "latency 8 2 " + median + " 0.4 0.6 30"}, nil
		}}
	}
	c := &comparison{launches: 2, steadyTime: time.Millisecond, shuffle: rand.New(rand.NewPCG(1, 0)), results: results{}, comments: map[string]string{},
		groups:   []group{{"latency", "shm", 2, []int{8}}},
		programs: []*program{echo("fisterra", "8", "1"), echo("openmpi", "16", "4")},
		distance: func() distance {
			if looks++; looks <= 3 { // before the round, and on either side of its first launch
				return 50
			}
			return 205
		}}
	c.measure(t.Context())
	if rows := c.results.rows(c.groups); launches != 4 || c.moves.mixed != 1 || *rows[0].Fisterra != 1 || *rows[0].OpenMPI != 4 {
		t.Errorf("%d launches, moves %+v, %g and %g", launches, c.moves, *rows[0].Fisterra, *rows[0].OpenMPI)
	}
}

func TestDistanceMeter(t *testing.T) {
	var before, after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	d := distanceMeter()()
	if known := before.Count() == 2; known != (d > 0) || d > distance(time.Millisecond) {
		t.Errorf("%d processors are %v apart", before.Count(), time.Duration(d))
	}
	if err := unix.SchedGetaffinity(0, &after); err != nil || after != before {
		t.Errorf("measuring left the processors %v, %v; before %v", after, err, before)
	}
}
