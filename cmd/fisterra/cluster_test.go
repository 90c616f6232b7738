package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// The tests named TestCluster run on a real Slurm of four nodes. Some wait for
// its clocks, so they run side by side, each on a cluster of its own.

// longWait is for what takes seconds at most, on a machine that may be slow and have other work.
const longWait = 4 * time.Minute

// runLimit is for a run that goes on while a test does several things that may take longWait each.
const runLimit = 15 * time.Minute

// onCluster brings up a cluster of four nodes with four cpus each.
func onCluster(t *testing.T, conf ...string) *lab.Slurm {
	t.Helper()
	t.Parallel()
	return clusterFirst(t, conf...)
}

// slowRate makes a step over TCP take some 60 ms, nearly all of it waiting.
const slowRate = "20mbit"

// slowCluster is onCluster with a slow network: a run over TCP that goes on until it is ended leaves
// the processors to other tests.
func slowCluster(t *testing.T, conf ...string) *lab.Slurm {
	t.Helper()
	s := onCluster(t, conf...)
	s.Throttle(slowRate)
	return s
}

// clusterFirst is onCluster for tests that have Slurm's clocks to wait for. They set these going before they say
// that they are parallel: then the tests that are not parallel run meanwhile.
func clusterFirst(t *testing.T, conf ...string) *lab.Slurm {
	t.Helper()
	lab.Fisterra(t)
	return lab.Cluster(t, 4, 4, conf...)
}

// within is a context for what must not take longer.
func within(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// words joins fixed words and lists of words.
func words(parts ...any) []string {
	var all []string
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			all = append(all, strings.Fields(p)...)
		case []string:
			all = append(all, p...)
		}
	}
	return all
}

// eventually waits until ok, which reads files of dir or below it.
func eventually(t *testing.T, limit time.Duration, what, dir string, ok func() bool, state func() string) {
	t.Helper()
	if err := lab.AwaitFiles(within(t, limit), dir, ok); err != nil {
		t.Fatalf("%s: not after %v: %v\n%s", what, limit, err, state())
	}
}

// eventuallyGone waits until nodes run none of some processes any more, whose PIDs are those
// of the nodes' namespaces.
func eventuallyGone(t *testing.T, s *lab.Slurm, limit time.Duration, pids map[string]int, state func() string) {
	t.Helper()
	ctx := within(t, limit)
	for pid, node := range pids {
		if r := s.On(ctx, node, "tail", "--pid="+pid, "--sleep-interval=0.05", "--follow", "/dev/null"); r.Code != 0 || r.Err != nil {
			t.Fatalf("process %s of node %d has not ended after %v: %v\n%s", pid, node, limit, r, state())
		}
	}
}

// output collects what a command writes while it runs.
type output struct {
	mu  chan struct{} // holds a token while nobody writes
	buf bytes.Buffer
}

func newOutput() *output {
	o := &output{mu: make(chan struct{}, 1)}
	o.mu <- struct{}{}
	return o
}

func (o *output) Write(p []byte) (int, error) {
	<-o.mu
	defer func() { o.mu <- struct{}{} }()
	return o.buf.Write(p)
}

func (o *output) String() string {
	<-o.mu
	defer func() { o.mu <- struct{}{} }()
	return o.buf.String()
}

// step is a training run under srun that goes on until something happens to it.
type step struct {
	t      *testing.T
	s      *lab.Slurm
	dir    string // of its logs
	out    *output
	ended  chan struct{}
	code   int // once ended
	pids   map[string]int
	hosts  map[string]string
	begins time.Time
}

var (
	startedLine = regexp.MustCompile(`msg=started .*name=(\S+) .*host=(\S+) pid=(\d+)`)
	stepRoles   = []string{"ps0", "worker0", "worker1", "worker2"}
)

// startStep starts a run of one server and three workers, by default with one
// on each node, and returns when it trains. prefix is a command of the controller that ends in
// what starts the ranks.
func startStep(t *testing.T, s *lab.Slurm, dir string, prefix []string, args ...string) *step {
	t.Helper()
	return awaitStep(t, s, dir, s.Command(within(t, runLimit), words(prefix, lab.Fisterra(t), "train --checkpoint-every 25 --checkpoint", dir+"/state", "--out", dir, args)...))
}

func awaitStep(t *testing.T, s *lab.Slurm, dir string, cmd *lab.Cmd) *step {
	t.Helper()
	x := &step{t: t, s: s, dir: dir, out: newOutput(), ended: make(chan struct{}), pids: map[string]int{}, hosts: map[string]string{}, begins: time.Now()}
	cmd.Stdout, cmd.Stderr = x.out, x.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		x.code = exitCode(cmd.Wait())
		close(x.ended)
	}()
	eventually(t, longWait, "training begins", filepath.Dir(dir), func() bool {
		for _, name := range stepRoles {
			if m := startedLine.FindStringSubmatch(x.log(name)); m != nil {
				x.hosts[name] = m[2]
				x.pids[name], _ = strconv.Atoi(m[3])
			}
		}
		return len(x.pids) == len(stepRoles) && x.saves() > 0
	}, x.state)
	return x
}

// log is what a process has written to its own log so far.
func (x *step) log(name string) string {
	text, err := os.ReadFile(filepath.Join(x.dir, name+".log"))
	if err != nil && !os.IsNotExist(err) {
		x.t.Error(err)
	}
	return string(text)
}

// saves is how often the chief has saved its state, a sign of progress.
func (x *step) saves() int { return strings.Count(x.log("worker0"), "saved a checkpoint") }

func (x *step) state() string {
	text := "output:\n" + x.out.String()
	for _, name := range stepRoles {
		text += "\n" + name + ".log:\n" + x.log(name)
	}
	return text
}

func (x *step) running() bool {
	select {
	case <-x.ended:
		return false
	default:
		return true
	}
}

// lasts is whether the step runs for that long without an end.
func (x *step) lasts(d time.Duration) bool {
	select {
	case <-x.ended:
		return false
	case <-time.After(d):
		return true
	}
}

// wait is the exit code of the whole.
func (x *step) wait(limit time.Duration) int {
	x.t.Helper()
	select {
	case <-x.ended:
	case <-time.After(limit):
		x.t.Fatalf("the step has not ended after %v\n%s", limit, x.state())
	}
	return x.code
}

// node is the index of the node that a process runs on.
func (x *step) node(name string) int { return slices.Index(x.s.Nodes, x.hosts[name]) }

// signal sends a signal to one process, inside its node.
func (x *step) signal(name, signal string) {
	x.t.Helper()
	if r := x.s.On(x.t.Context(), x.node(name), "kill", "-"+signal, fmt.Sprint(x.pids[name])); r.Code != 0 {
		x.t.Fatalf("kill -%s %s: %v", signal, name, r)
	}
}

// signalAll sends a signal to some processes, each of which has got it before any of them hears of it: else the first to hear
// ends the run, and takes along those that the signal has not reached yet.
func (x *step) signalAll(signal string, names ...string) {
	x.t.Helper()
	for _, s := range []string{"STOP", signal, "CONT"} {
		for _, name := range names {
			x.signal(name, s)
		}
	}
}

// eventuallyGone waits until the nodes run none of the named processes any more.
func (x *step) eventuallyGone(limit time.Duration, names ...string) {
	x.t.Helper()
	pids := map[string]int{}
	for _, name := range names {
		pids[fmt.Sprint(x.pids[name])] = x.node(name)
	}
	eventuallyGone(x.t, x.s, limit, pids, x.state)
}

// gone checks that the node runs none of the step's processes any more.
func (x *step) gone(names ...string) {
	x.t.Helper()
	for _, name := range names {
		if r := x.s.On(x.t.Context(), x.node(name), "kill", "-0", fmt.Sprint(x.pids[name])); r.Code == 0 || !strings.Contains(r.Stderr, "No such process") {
			x.t.Errorf("%s is left, or cannot be looked for: %v", name, r)
		}
	}
}

// submit pipes the script that fisterra template slurm writes into sbatch, as
// its user would, and returns the job's id. args are the template's.
func submit(t *testing.T, s *lab.Slurm, args ...string) string {
	t.Helper()
	r := s.Command(within(t, longWait), words("bash -c", []string{`"$0" template slurm "$@" | sbatch --parsable`, lab.Fisterra(t), "--output", filepath.Join(s.Dir, "%A.log")}, args)...).Run()
	id := strings.TrimSpace(r.Stdout)
	if r.Code != 0 || id == "" {
		t.Fatalf("template slurm %q | sbatch: %v", args, r)
	}
	return id
}

// jobLog is what a job of submit has written so far.
func jobLog(s *lab.Slurm, id string) string {
	text, err := os.ReadFile(filepath.Join(s.Dir, id+".log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// awaitLog waits for text in a job's log and returns the log.
func awaitLog(t *testing.T, s *lab.Slurm, id, pattern string, limit time.Duration) string {
	t.Helper()
	wanted := regexp.MustCompile(pattern)
	eventually(t, limit, fmt.Sprintf("%q in the log of job %s", pattern, id), s.Dir,
		func() bool { return wanted.MatchString(jobLog(s, id)) },
		func() string { return jobLog(s, id) + fmt.Sprint(s.Job(t.Context(), id)) })
	return jobLog(s, id)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
