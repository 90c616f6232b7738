package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

func TestParse(t *testing.T) {
	g := group{"latency", "shm", 2, []int{8, 4096}}
	good := "# A library; thread level single\nlatency 8 2 0.5 0.4 0.6 30\nlatency 4096 2 1.5 1 2 9\n"
	document := `{"title":"Latency Test","version":"fisterra 1","ranks":2,"rows":[
{"op":"latency","bytes":8,"ranks":2,"median_us":0.5,"p10_us":0.4,"p90_us":0.6,"reps":30,"avg_us":0.55},
{"op":"latency","bytes":4096,"ranks":2,"median_us":1.5,"p10_us":1,"p90_us":2,"reps":9}
]}
`
	for comment, out := range map[string]string{"A library; thread level single": good, "Fisterra Latency Test, fisterra 1": document} {
		l, err := parse(out, g)
		if err != nil || l.comment != comment || len(l.rows) != 2 ||
			l.rows[0] != (measured{"latency", 8, 2, 0.5, 0.4, 0.6, 30}) || l.rows[1] != (measured{"latency", 4096, 2, 1.5, 1, 2, 9}) {
			t.Errorf("%+v %v", l, err)
		}
	}
	for name, out := range map[string]string{
		"nothing":         "# only words\n",
		"a size missing":  "latency 8 2 0.5 0.4 0.6 30\n",
		"a size too many": good + "latency 65536 2 0.5 0.4 0.6 30\n",
		"another op":      strings.ReplaceAll(good, "latency", "bw"),
		"other ranks":     strings.Replace(good, "8 2 0.5", "8 4 0.5", 1),
		"no time":         strings.Replace(good, "0.5", "0", 1),
		"not a number":    strings.Replace(good, "0.5", "fast", 1),
		"words":           good + "MPI has a warning for you\n",
		"broken JSON":     strings.Replace(document, `"reps":9}`, "", 1),
		"an empty list":   `{"title":"Latency Test","rows":[]}`,
	} {
		if l, err := parse(out, g); err == nil {
			t.Errorf("%s: read as %+v", name, l)
		}
	}
}

// roundOf is one of 8 bytes, with a median of each program.
func roundOf(mixed bool, medians map[string]float64) round {
	of := round{rows: map[string][]measured{}, mixed: mixed}
	for program, m := range medians {
		of.rows[program] = []measured{{Op: "latency", Bytes: 8, Ranks: 2, Median: m, Reps: 1}}
	}
	return of
}

// Programs are compared over the rounds in which the processors stayed, however many others there are; over those only if there are no such rounds.
func TestRoundsOfOnePlaceCount(t *testing.T) {
	g := group{"latency", "shm", 2, []int{8}}
	r := results{}
	for range 3 {
		r.add(g, roundOf(true, map[string]float64{"fisterra": 8, "openmpi": 2}))
	}
	if rows := r.rows([]group{g}); *rows[0].Ratio != 4 {
		t.Errorf("of rounds that are all mixed: %+v", rows[0])
	}
	r.add(g, roundOf(false, map[string]float64{"fisterra": 1, "openmpi": 2}))
	if rows := r.rows([]group{g}); *rows[0].Fisterra != 1 || *rows[0].Ratio != 0.5 {
		t.Errorf("with one of one place: %+v", rows[0])
	}
}

func TestRowsAndRatio(t *testing.T) {
	g := group{"latency", "shm", 2, []int{8}}
	r := results{}
	for program, medians := range map[string][]float64{"fisterra": {3, 1, 2}, "openmpi": {4, 5}, "mpich": {4, 4, 100}} {
		for _, m := range medians {
			r.add(g, roundOf(false, map[string]float64{program: m}))
		}
	}
	rows := r.rows([]group{g, {"bw", "tcp", 2, []int{64}}})
	if len(rows) != 2 || *rows[0].Fisterra != 2 || *rows[0].OpenMPI != 4.5 || *rows[0].MPICH != 4 || *rows[0].Ratio != 0.5 {
		t.Errorf("%+v", rows[0])
	}
	if rows[1].Fisterra != nil || rows[1].Ratio != nil {
		t.Errorf("a ratio of nothing: %+v", rows[1])
	}
	path := filepath.Join(t.TempDir(), "build", "peers.json")
	if err := writeJSON(path, rows); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(path)
	var objects []map[string]any
	if err := json.Unmarshal(text, &objects); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"op", "transport", "bytes", "ranks", "fisterra", "openmpi", "mpich", "gloo", "ratio_best_peer"} {
		if _, ok := objects[1][key]; !ok {
			t.Errorf("peers.json has no %q: %s", key, text)
		}
	}
	var table bytes.Buffer
	printTable(&table, rows)
	if want := "| latency | shm | 2 | 8 | 2.00 | 4.50 | 4.00 | – | 0.50 |\n"; !strings.Contains(table.String(), want) {
		t.Errorf("no line %q in\n%s", want, table.String())
	}
	absent := r.missing([]group{g}, []*program{fisterra("x", nil, 2, "cubic"), {name: "gone", can: func(group) bool { return true }}})
	if len(absent) != 1 || absent[0] != "gone latency/shm/2" {
		t.Errorf("missing: %v", absent)
	}
}

// A library that is built and does not start is left out, as one that is absent.
func TestAdmit(t *testing.T) {
	c := &comparison{levels: map[string]string{}, budget: time.Millisecond, distance: func() distance { return 0 }, steadyTime: time.Second}
	for name, args := range map[string][]string{
		"works":          {"echo", "latency 8 2 0.5 0.4 0.6 30"},
		"does not start": {"false"},
		"is gone":        {filepath.Join(t.TempDir(), "gone")},
	} {
		c.admit(name, func() (*program, error) {
			return &program{name: name, command: func(group, time.Duration) ([]string, []string) { return args, nil }}, nil
		}, func(p *program) error { return c.pickLevel(t.Context(), p) })
	}
	c.admit("is not built", func() (*program, error) { return nil, os.ErrNotExist }, func(*program) error { return nil })
	if len(c.programs) != 1 || c.programs[0].name != "works" {
		t.Errorf("admitted: %v", c.programs)
	}
}

func TestRefusesArguments(t *testing.T) {
	for _, args := range [][]string{{"-launches", "3", "latency/shm/2"}, {"-ranks", "1"}, {"-ranks", "2,"}, {"-ranks", "4,4"}, {"-ranks", "4", "-only", "/2x"}} {
		if code := run(t.Context(), args); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}

func TestGroupsOfRanks(t *testing.T) {
	ranks, err := rankCounts("2, 8,16")
	if err != nil {
		t.Fatal(err)
	}
	points := map[point]int{}
	sizes := map[string]int{}
	for _, g := range groups(ranks) {
		for _, size := range g.sizes {
			points[point{g.name(), size}]++
			sizes[g.name()]++
		}
	}
	for p, times := range points {
		if times != 1 {
			t.Errorf("%+v is measured %d times", p, times)
		}
	}
	for name, want := range map[string]int{"allreduce/shm/2": 5, "allreduce/shm/4": 0, "bcast/shm/16": 5, "barrier/shm/8": 1,
		"barrier/shm/16": 1, "scan/shm/16": 3, "scan/shm/8": 0, "allreduce/tcp/2": 5} {
		if sizes[name] != want {
			t.Errorf("%s at %d sizes, want %d", name, sizes[name], want)
		}
	}
}

// What Gloo's ranks meet by goes with the directory in which it was built, also where it was killed.
func TestGlooMeetsBelowItsDirectory(t *testing.T) {
	src, err := unpack(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, dir := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", elsewhere)
	p, err := gloo(src, dir)
	if err != nil {
		need.Part(t, "gloo", err.Error())
	}
	args, _ := p.command(group{"allreduce", "tcp", 2, slices.Repeat([]int{8}, 1000)}, 200*time.Millisecond)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n') // they have met
	if err := errors.Join(err, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)); err != nil {
		t.Errorf("%q: %v", line, err)
	}
	_ = cmd.Wait() // killed
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) != 0 {
		t.Errorf("%v: %v", err, left)
	}
}

// What lies beside the rows is the user's, whatever it is called, and nothing is left beside it.
func TestBuildsInADirectoryOfItsOwn(t *testing.T) {
	home := t.TempDir()
	kept := filepath.Join(home, "peers", "kept")
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"-json", filepath.Join(home, "rows.json"), "-fisterra", filepath.Join(home, "gone"), "-congestion", "system"}
	if code := run(t.Context(), args); code != 69 {
		t.Errorf("exit code %d without a Fisterra to measure", code)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) != 1 {
		t.Errorf("%v: %v", err, left)
	}
}

// Short messages are measured apart from long ones.
func TestSelected(t *testing.T) {
	kept, err := selected([]int{2, 4}, "^allreduce/(shm|tcp)/2$", 64*kib)
	if err != nil || len(kept) != 4 || kept[0].sizeList() != "8,4096" || kept[1].sizeList() != "65536" {
		t.Errorf("%v %v", kept, err)
	}
	for _, bad := range []string{"nothing", "("} {
		if kept, err := selected([]int{2, 4}, bad, mib); err == nil {
			t.Errorf("%s selects %v", bad, kept)
		}
	}
}

// Fisterra's connections have the congestion control that the network has for all others.
func TestFisterraTakesTheCongestionControl(t *testing.T) {
	for _, want := range []string{"system", "reno"} {
		s, err := newSandbox(want)
		if err != nil {
			t.Log(err) // s is the system's then
		}
		ours := fisterra("x", nil, 2, s.congestion)
		for _, g := range []group{{"latency", "tcp", 2, []int{8}}, {"allreduce", "tcp", 2, []int{8}}, {"latency", "shm", 2, []int{8}}} {
			args, _ := ours.command(g, time.Second)
			at := slices.Index(args, "--congestion-control")
			if g.transport != "tcp" {
				if at >= 0 {
					t.Errorf("%s: %q", g.name(), args)
				}
				continue
			}
			if at < 0 || at+1 == len(args) || args[at+1] != s.congestion || s.congestion == "system" {
				t.Errorf("%s under %s: %q", g.name(), s.congestion, args)
			}
		}
	}
	g, budget := group{"latency", "tcp", 2, []int{8}}, 5*time.Millisecond
	s, err := newSandbox("reno")
	if err != nil {
		t.Log(err)
	}
	if l, err := launch(t.Context(), fisterra(lab.Fisterra(t), nil, 2, s.congestion), g, s, budget); err != nil {
		t.Errorf("under %s: %v", s.congestion, err)
	} else {
		t.Logf("under %s: %+v", s.congestion, l.rows)
	}
}

// A program that has printed every result and does not end is ended, if that is allowed, and its results count; not those
// of one that fails or still owes some.
func TestLaunchOfAProgramThatDoesNotEnd(t *testing.T) {
	g := group{"latency", "shm", 2, []int{8, 64}}
	const first, second = "latency 8 2 1.5 1.4 1.6 11", "latency 64 2 2.5 2.4 2.6 11"
	for name, tc := range map[string]struct {
		script string
		want   string // of the error
	}{
		"all":   {"echo " + first + "; echo " + second + "; exec sleep 1000", ""},
		"fails": {"echo " + first + "; echo " + second + "; exit 3", "exit status 3"},
		"ends":  {"echo " + first + "; echo " + second, ""},
		"one":   {"echo " + first, "no row for 64 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &program{name: name, endTime: 50 * time.Millisecond, command: func(group, time.Duration) (args, env []string) {
				return []string{"sh", "-c", tc.script}, nil
			}}
			l, err := launch(t.Context(), p, g, sandbox{}, 0)
			if tc.want == "" && (err != nil || len(l.rows) != 2 || l.rows[1].Median != 2.5) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%+v, %v; want the error %q", l, err, tc.want)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	p := &program{name: "must end", command: func(group, time.Duration) (args, env []string) {
		return []string{"sh", "-c", "echo " + first + "; echo " + second + "; exec sleep 1000"}, nil
	}}
	if l, err := launch(ctx, p, g, sandbox{}, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%+v, %v", l, err)
	}
}

// Over a library's messages Fisterra is started as the library's own program is, and has no other peer.
func TestMPIPeersOverALibrary(t *testing.T) {
	libraries := []library{openmpi(), mpich()}
	ours := fisterra(lab.Fisterra(t), libraries, 2, "cubic")
	if without := fisterra("x", libraries[:1], 2, "cubic"); without.can(group{"latency", "mpich", 2, nil}) {
		t.Error("Fisterra is to be started by a library that does not start")
	}
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			if _, err := exec.LookPath(l.compiler); err != nil {
				need.Part(t, l.name, err.Error())
			}
			for _, g := range []group{{"latency", l.name, 2, []int{8, 65536}}, {"allreduce", l.name, 2, []int{8}}} {
				measured, err := launch(t.Context(), ours, g, sandbox{}, 5*time.Millisecond)
				if err != nil {
					t.Errorf("%s: %v", g.name(), err)
					continue
				}
				t.Logf("%s: %s %+v", g.name(), measured.comment, measured.rows)
			}
		})
	}
}

// The peers' own programs, built and run: they check every result before they time it.
func TestMPIPeersMeasure(t *testing.T) {
	src, err := unpack(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	net, err := newSandbox("cubic")
	if err != nil {
		t.Log(err)
	}
	single := func(string) string { return "single" }
	small := []group{
		{"latency", "shm", 2, []int{0, 8, 4096, 1 << 20}}, {"latency", "tcp", 2, []int{8, 65536}},
		{"bw", "shm", 2, []int{65536}}, {"bibw", "shm", 2, []int{4096}}, {"mbw_mr", "shm", 2, []int{8}},
		{"fresh", "shm", 2, []int{40000}}, {"pairs", "shm", 4, []int{8}}, {"barrier", "shm", 2, []int{0}}, {"allreduce", "tcp", 2, []int{8, 4000}},
		{"reduce_scatter", "tcp", 2, []int{8, 4000}}, {"scan", "tcp", 2, []int{8}},
	}
	// Two ranks, and three for a remainder: with more ranks than cores MPICH takes milliseconds a call.
	small = append(small, group{"allreduce", "shm", 3, []int{4004}}, group{"reduce_scatter", "shm", 3, []int{4004}})
	for _, op := range []string{"reduce", "bcast", "allgather", "alltoall", "reduce_scatter", "gather", "scatter", "scan"} {
		small = append(small, group{op, "shm", 2, []int{8, 4004}})
	}
	for _, library := range []string{"openmpi", "mpich"} {
		small = append(small, group{"latency", library, 2, []int{8, 65536}}, group{"allreduce", library, 2, []int{8, 65536}})
	}
	for name, build := range map[string]func() (*program, error){
		"openmpi": func() (*program, error) { return openmpi().peer(src, dir, single, 2) },
		"mpich":   func() (*program, error) { return mpich().peer(src, dir, single, 2) },
		"gloo":    func() (*program, error) { return gloo(src, dir) },
	} {
		t.Run(name, func(t *testing.T) {
			p, err := build()
			if err != nil {
				need.Part(t, name, err.Error())
			}
			for _, g := range small {
				if !p.can(g) {
					continue
				}
				l, err := launch(t.Context(), p, g, net, 5*time.Millisecond)
				if err != nil {
					t.Errorf("%s: %v", g.name(), err)
					continue
				}
				t.Logf("%s: %+v", g.name(), l.rows)
			}
		})
	}
}
