package launch

import (
	"syscall"
	"testing"
)

// What tells most of why a job ended is its code.
func TestOutcomeCode(t *testing.T) {
	const term = 128 + int(syscall.SIGTERM)
	failed, ended := Exit{Code: 7}, Exit{Code: term, Signal: syscall.SIGTERM, Ended: true}
	for _, k := range []struct {
		name             string
		o                Outcome
		ending, unlogged bool
		want             int
	}{
		{"all is well", Outcome{Exits: []Exit{{}, {}}}, false, false, 0},
		{"the highest of those that failed", Outcome{Exits: []Exit{failed, {Code: 3}}}, false, false, 7},
		{"others were ended because one failed", Outcome{Exits: []Exit{failed, ended}}, true, false, 7},
		{"out of time", Outcome{Exits: []Exit{failed, ended}, TimedOut: true}, true, true, ExitTimeout},
		{"interrupted", Outcome{Exits: []Exit{ended}, Interrupted: syscall.SIGINT}, true, true, 128 + int(syscall.SIGINT)},
		{"failed, and interrupted", Outcome{Exits: []Exit{failed, ended}, Interrupted: syscall.SIGINT}, true, false, 7},
		{"the context has ended", Outcome{Exits: []Exit{ended}}, true, true, term},
		{"no log", Outcome{Exits: []Exit{{}}}, false, true, 1},
	} {
		if got := k.o.code(k.ending, k.unlogged); got != k.want {
			t.Errorf("%s: %d, want %d", k.name, got, k.want)
		}
	}
}
