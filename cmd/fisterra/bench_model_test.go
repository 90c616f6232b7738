package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/lab"
)

func TestBenchExplain(t *testing.T) {
	site := filepath.Join(t.TempDir(), "site.json")
	if err := os.WriteFile(site, []byte(`{"name":"here","rules":[
		{"collective":"allreduce","ranks":2,"hosts":2,"up_to_bytes":64,"plan":"ring"},
		{"collective":"bcast","ranks":2,"hosts":1,"up_to_bytes":-1,"plan":"library"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"--transport tcp --sizes 8 --site " + site, "on 2 hosts: ring, site table"},
		{"--transport tcp --sizes 8", "cheapest by model default"},
		{"--transport mpi --sizes 8 --op bcast --site " + site, "on 1 hosts: library, site table"},
		{"--transport mpi --sizes 8 --ranks-per-host 1", "on 2 hosts: library, across hosts"},
		{"--transport mpi --sizes 8 --collectives native", "on 1 hosts: library, forced"},
		{"--transport mpi --sizes 8 --ranks-per-host 1 --collectives fisterra", "cheapest by model"},
		{"-n 96 --ranks-per-host 24 --op scan --sizes 64K", "on 4 hosts: node+doubling, cheapest"},
		{"-n 4 --op allgather --sizes 1K", "allgather of 4096 B over 4"}, // sizes as bench OPERATION has them
		{"-n 4 --op alltoall --sizes 1K", "alltoall of 4096 B over 4"},
		{"-n 4 --op gather --sizes 1K", "gather of 4096 B over 4"},
		{"-n 4 --op scatter --sizes 1K", "scatter of 4096 B over 4"},
		{"-n 4 --op reduce_scatter --sizes 1K", "reduce_scatter of 1024 B over 4"},
		{"-n 4 --op bcast --sizes 1K", "bcast of 1024 B over 4"},
		{"-n 96 --ranks-per-host 24 --distribution cyclic --op exscan --sizes 8K", "the ranks of a host are not consecutive"},
		{"-n 96 --ranks-per-host 24 --distribution cyclic --op allgather --sizes 4K", "allgather of 393216 B over 96 ranks on 4 hosts: node+lanes, cheapest"},
	} {
		if out, errs, code := command(nil, words("bench explain", c.args)...); code != exitOK || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit code %d, want %q in\n%s%s", c.args, code, c.want, out, errs)
		}
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"--site " + site + ".gone", exitUsage, "--site: open"},
		{"--collectives native", exitAbsent, "--transport mpi"},
		{"--distribution plane", exitUsage, `--distribution "plane"`},
	} {
		if _, errs, code := command(nil, words("bench explain", c.args)...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit code %d, want %d and %q in %s", c.args, code, c.code, c.want, errs)
		}
	}
}

// A barrier has one size, 0, however many others have.
func TestBarrierHasNoSizes(t *testing.T) {
	for args, want := range map[string]string{
		"bench explain --op barrier,bcast --sizes 8,64K":                     "barrier of 0 B",
		"bench scale --op barrier --ranks 4 --sizes 8,64K,16M --format json": `"asked_bytes":0,"bytes":0`,
	} {
		out, errs, code := command(nil, words(args)...)
		if code != exitOK || strings.Count(out, want) != 1 || strings.Count(out, "barrier of") > 1 || strings.Count(out, "asked_bytes") > 1 {
			t.Errorf("%s: exit code %d, %s want %q once in\n%s", args, code, errs, want, out)
		}
	}
}

// Without --check nothing but the model is measured, and what says how plans are is refused.
func TestBenchModelAlone(t *testing.T) {
	site := siteWithRules(t)
	ctx := within(t, 5*time.Minute) // some seconds alone
	r := lab.Command(ctx, t, lab.Fisterra(t), "bench", "model", "--peer-timeout", "1m", "--budget", "6ms", "--site", site, "--file", site).Run()
	if r.Code != exitOK || !strings.Contains(r.Stdout, "α ") {
		t.Error(r)
	}
	if s := readSite(t, site); s.Model == nil || s.ModelTransport != "shm" || len(s.Rules) != 2 { // the rules that were there stay
		t.Errorf("%+v", s)
	}
	for transport, want := range map[string]string{"shm": "model measured", "tcp": "that of site here was measured over shm, and ranks are here over tcp"} {
		out, errs, code := command(nil, words("bench explain --op scan --sizes 8 --transport", transport, "--site", site)...)
		if code != exitOK || !strings.Contains(out, want) || strings.Contains(out, "that of site") != (transport != "shm") {
			t.Errorf("over %s: exit code %d, want %q in\n%s%s", transport, code, want, out, errs)
		}
	}
	for _, flag := range []string{"--op=bcast", "--sizes=8"} {
		name, _, _ := strings.Cut(flag, "=")
		if _, errs, code := command(nil, "bench", "model", flag); code != exitUsage || !strings.Contains(errs, name+" without --check") {
			t.Errorf("%s: exit code %d, %s", flag, code, errs)
		}
	}
}

// One rank has nobody to measure with, and no file is written that says otherwise.
func TestBenchModelOfOneRank(t *testing.T) {
	for _, args := range []string{"bench model", "bench model --check", "bench tune"} {
		file := filepath.Join(t.TempDir(), "site.json")
		r := fisterra(t, words(args, "-n 1 --peer-timeout 1m --budget 1ms --file", file)...)
		if r.Code != exitUsage || !strings.Contains(r.Stderr, "-n 1: ") || !strings.Contains(r.Stderr, "want at least 2") {
			t.Errorf("%s: %v", args, r)
		}
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file was written: %v", args, err)
		}
	}
}

// Whom figures are for that hold what sharing a processor costs is said with them.
func TestPrintedModelSaysWhoTookTurns(t *testing.T) {
	for turn, want := range map[float64]bool{0: true, 1e-6: false} {
		var out strings.Builder
		printModel(environment{stdout: &out}, &plan.Model{Switch: turn})
		if got := strings.Contains(out.String(), "took turns on one processor"); got != want {
			t.Errorf("a turn of %g s: %s", turn, out.String())
		}
	}
}

// What has been measured before, for other numbers of ranks, stays in a site's file; of the same case the new counts.
func TestSiteKeepsItsRules(t *testing.T) {
	file := siteWithRules(t)
	r := fisterra(t, words("bench tune --op barrier --sizes 8 --peer-timeout 1m --budget 2ms --site", file, "--file", file)...)
	if r.Code != exitOK {
		t.Fatal(r)
	}
	if s := readSite(t, file); len(s.Rules) != 2 || s.Rules[0].Ranks != 96 || s.Rules[1].Plan == "library" || s.Model == nil || s.ModelTransport != "shm" || s.Name != "here" {
		t.Errorf("%+v", s)
	}
}

// siteWithRules is the file of a site with a rule for another number of ranks, and one for a barrier of two.
func siteWithRules(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "site.json")
	if err := os.WriteFile(file, []byte(`{"name":"here","rules":[
		{"collective":"bcast","ranks":96,"hosts":4,"up_to_bytes":64,"plan":"binomial"},
		{"collective":"barrier","ranks":2,"hosts":1,"up_to_bytes":0,"plan":"library"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func readSite(t *testing.T, file string) *collective.Site {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := collective.ReadSite(f, file)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// That the site file cannot be written is found out before anything is measured.
func TestBenchModelUnwritableFile(t *testing.T) {
	for _, args := range []string{"bench model", "bench tune --op barrier --sizes 8"} {
		r := fisterra(t, words(args, "--budget 1ms --file /proc/none")...)
		if r.Code != exitUsage || r.Stdout != "" || !strings.Contains(r.Stderr, "--file: open /proc/") {
			t.Errorf("%s: %v", args, r)
		}
	}
}
