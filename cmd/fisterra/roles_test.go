package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestRoleFlagsNameThemselves: a wrong flag is refused by its name before the ranks meet, whoever
// started them.
func TestRoleFlagsNameThemselves(t *testing.T) {
	launched := map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "6"}
	env := environment{lookup: func(name string) (string, bool) { value, ok := launched[name]; return value, ok }}
	for _, c := range []struct{ args, want string }{
		{"", ""},
		{"--ps 2 --workers 4", ""},
		{"--placement middle", "--placement: "},
		{"--roles ps,wroker,worker", "--roles: "},
		{"--ps -1", "--ps -1: want"},
		{"--workers 0", "--workers 0: want"},
		{"--roles ps,worker --ps 1", "--roles ps,worker and --ps 1 exclude each other"},
	} {
		var r roleFlags
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		r.add(f)
		if err := f.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		n, err := r.started(env)
		if c.want == "" && (err != nil || n != 6) {
			t.Errorf("%q: %d ranks, %v", c.args, n, err)
		}
		if c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %q first", c.args, err, c.want)
		}
	}
}
