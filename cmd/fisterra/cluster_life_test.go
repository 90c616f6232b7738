package main

import (
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

// long is a run that ends only because somebody ends it. That it saves by itself
// now and then shows that all its ranks train.
var long = words("--", endless, "--checkpoint-every 25")

// running waits until a job of submit trains after so many restarts: its ranks have
// met, made steps and saved.
func running(t *testing.T, s *lab.Slurm, id string, restarts int) {
	t.Helper()
	awaitLog(t, s, id, fmt.Sprintf(`(?s)job \d+, restart %d, .*saved a checkpoint`, restarts), longWait)
}

// limitTime gives a job another time limit, in minutes, counted from its beginning.
func limitTime(t *testing.T, s *lab.Slurm, id string, minutes int) {
	t.Helper()
	if r := s.Exec(t.Context(), "scontrol", "update", "JobId="+id, fmt.Sprintf("TimeLimit=%d", minutes)); r.Code != 0 {
		t.Fatal(r)
	}
}

// savedWhenAsked checks that the last state was saved because a signal asked for the
// end, not by chance before.
func savedWhenAsked(t *testing.T, log string) {
	t.Helper()
	// By their times: srun forwards the lines of one node before those of another.
	asked := regexp.MustCompile(`time=(\S+) [^\n]*ends after this step, as asked`).FindAllStringSubmatch(log, -1)
	saved := regexp.MustCompile(`time=(\S+) [^\n]*saved a checkpoint`).FindAllStringSubmatch(log, -1)
	earlier := func(a, b []string) int { return strings.Compare(a[1], b[1]) }
	if len(asked) == 0 || len(saved) == 0 || slices.MaxFunc(saved, earlier)[1] < slices.MinFunc(asked, earlier)[1] {
		t.Errorf("nothing was saved after the signal:\n%s", log)
	}
}

// resumed waits until a job goes on with a checkpoint, after so many restarts, and
// returns the step that this belongs to.
func resumed(t *testing.T, s *lab.Slurm, id string, restarts int) int {
	t.Helper()
	again := regexp.MustCompile(fmt.Sprintf(`(?s)job \d+, restart %d, .*?resumed from a checkpoint[^\n]* step=(\d+)`, restarts))
	m := again.FindStringSubmatch(awaitLog(t, s, id, again.String(), longWait))
	step, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return step
}

// savedStep is the step of a checkpoint.
func savedStep(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "state.safetensors"))
	if err != nil {
		t.Fatalf("no checkpoint: %v", err)
	}
	m := regexp.MustCompile(`"step":"?(\d+)`).FindSubmatch(text[:min(len(text), 4096)])
	if m == nil {
		t.Fatalf("no step in the checkpoint: %q", text[:min(len(text), 400)])
	}
	step, _ := strconv.Atoi(string(m[1]))
	return step
}

// TestClusterScancel: a cancelled job saves its state within KillWait, and the
// same script then goes on at that step.
func TestClusterScancel(t *testing.T) {
	s := slowCluster(t)
	dir := filepath.Join(s.Dir, "state")
	id := submit(t, s, words("--nodes 4 --ntasks-per-node 1 --checkpoint", dir, long)...)
	running(t, s, id, 0)
	if r := s.Exec(t.Context(), "scancel", id); r.Code != 0 {
		t.Fatal(r)
	}
	log := awaitLog(t, s, id, "the tasks ended with code", longWait) // after KillWait, 30 s, it would be that of SIGKILL
	// The shell may hear of the signal only after the tasks have ended, and is gone then.
	if !strings.Contains(log, "ended with code 143") || !strings.Contains(log, "signal=terminated") {
		t.Errorf("the job's log does not say how it ended:\n%s", log)
	}
	if job := s.Await(t.Context(), id, "over", lab.Job.Over); job.State() != "CANCELLED" {
		t.Errorf("%v", job)
	}
	saved := savedStep(t, dir)
	if saved == 0 {
		t.Error("nothing was trained before the checkpoint")
	}
	savedWhenAsked(t, log)
	id = submit(t, s, words("--nodes 4 --ntasks-per-node 1 --checkpoint", dir, "--", endless)...)
	if at := resumed(t, s, id, 0); at != saved {
		t.Errorf("resumed at step %d, saved was %d\n%s", at, saved, jobLog(s, id))
	}
	// A plain signal to the tasks does the same; the shell hears nothing of it.
	if r := s.Exec(t.Context(), "scancel", "-s", "USR2", id); r.Code != 0 {
		t.Error(r)
	}
	eventually(t, longWait, "USR2 saves and goes on", dir, func() bool { return savedStep(t, dir) > saved }, func() string { return jobLog(s, id) })
	if r := s.Exec(t.Context(), "scancel", "-s", "USR1", id); r.Code != 0 {
		t.Error(r)
	}
	awaitLog(t, s, id, "the tasks ended with code 138", longWait)
	if job := s.Await(t.Context(), id, "over", lab.Job.Over); job.State() != "FAILED" || job["ExitCode"] != "138:0" {
		t.Errorf("%v", job)
	}
	// A step over the parts of a heterogeneous job hears it in each part, and goes on likewise.
	t.Run("heterogeneous", func(t *testing.T) {
		dir, parts := filepath.Join(s.Dir, "parts"), words("salloc -N1 -n1 : -N2 -n3 srun --het-group=0,1")
		x := startStep(t, s, dir, parts, endless...)
		if r := s.Exec(t.Context(), "scancel", "-s", "USR1", "--me"); r.Code != 0 {
			t.Fatal(r)
		}
		if code := x.wait(longWait); code != 128+10 {
			t.Errorf("exit code %d\n%s", code, x.state())
		}
		x.gone(stepRoles...)
		saved := savedStep(t, filepath.Join(dir, "state"))
		r := s.Exec(within(t, longWait), words(parts, lab.Fisterra(t), "train --json --epochs 1 --peer-timeout 1m --checkpoint", filepath.Join(dir, "state"))...)
		if x := resultOf(t, r); x.Resumed != int64(saved) || saved == 0 {
			t.Errorf("saved at step %d: %+v", saved, x)
		}
	})
}

// TestClusterRequeue: a requeued job goes on at the saved step, again and again.
func TestClusterRequeue(t *testing.T) {
	s := slowCluster(t)
	dir := filepath.Join(s.Dir, "state")
	id := submit(t, s, words("--nodes 2 --ntasks-per-node 2 --requeue --mpi pmi2 --checkpoint", dir, long)...)
	running(t, s, id, 0)
	before := 0
	for restart := 1; restart <= 2; restart++ {
		if r := s.Exec(t.Context(), "scontrol", "requeue", id); r.Code != 0 {
			t.Fatal(r)
		}
		eventually(t, longWait, "the tasks have ended", s.Dir, func() bool { return strings.Count(jobLog(s, id), "the tasks ended with code 143") == restart }, func() string { return jobLog(s, id) })
		saved := savedStep(t, dir)
		if at := resumed(t, s, id, restart); at != saved || at <= before {
			t.Errorf("restart %d began at step %d; saved %d, before %d\n%s", restart, at, saved, before, jobLog(s, id))
		}
		before = saved
		running(t, s, id, restart)
	}
	if job := s.Job(t.Context(), id); job["Restarts"] != "2" {
		t.Errorf("%v", job)
	}
	s.Exec(t.Context(), "scancel", id)
	s.Await(t.Context(), id, "over", lab.Job.Over)
}

// TestClusterSignal: --signal before the time limit and --requeue carry a run
// over any number of jobs.
func TestClusterSignal(t *testing.T) {
	s := slowCluster(t)
	dir := filepath.Join(s.Dir, "state")
	id := submit(t, s, words("--nodes 4 --ntasks-per-node 1 --time 60 --signal USR1@110 --requeue --checkpoint", dir, long)...)
	running(t, s, id, 0)
	limitTime(t, s, id, 2) // so that the signal is due; Slurm looks at its clocks every 30 s
	log := awaitLog(t, s, id, "the tasks ended with code", longWait)
	limitTime(t, s, id, 60)
	if !strings.Contains(log, "ended with code 138") {
		t.Errorf("the log does not say that USR1 ended it:\n%s", log)
	}
	savedWhenAsked(t, log)
	saved := savedStep(t, dir)
	if at := resumed(t, s, id, 1); at != saved || saved == 0 {
		t.Errorf("began again at step %d, saved was %d\n%s", at, saved, jobLog(s, id))
	}
	s.Exec(t.Context(), "scancel", id)
	if job := s.Await(t.Context(), id, "over", lab.Job.Over); job.State() != "CANCELLED" || job["Restarts"] != "1" {
		t.Errorf("%v", job)
	}
}

// TestClusterTimeLimit: at the time limit the run saves and ends by itself.
func TestClusterTimeLimit(t *testing.T) {
	s := clusterFirst(t)
	s.Throttle(slowRate)
	dir := filepath.Join(s.Dir, "state")
	id := submit(t, s, words("--nodes 2 --ntasks-per-node 2 --time 60 --checkpoint", dir, long)...)
	running(t, s, id, 0)
	limitTime(t, s, id, 1)
	t.Parallel()
	log := awaitLog(t, s, id, "the tasks ended with code", 3*time.Minute)
	// Slurm says why on the step's first node, which may hear of it last.
	if !strings.Contains(log, "ended with code 143") {
		t.Errorf("the log does not say that a signal ended it:\n%s", log)
	}
	if job := s.Await(t.Context(), id, "over", lab.Job.Over); job.State() != "TIMEOUT" {
		t.Errorf("%v", job)
	}
	savedWhenAsked(t, log)
}

// TestClusterPreemption: a job of more worth takes the nodes; the run saves,
// waits its turn and goes on.
func TestClusterPreemption(t *testing.T) {
	s := slowCluster(t)
	dir := filepath.Join(s.Dir, "state")
	id := submit(t, s, words("--nodes 4 --ntasks-per-node 4 --partition low --requeue --checkpoint", dir, long)...)
	running(t, s, id, 0)
	winner := s.Submit(t.Context(), "", "-N4", "--ntasks-per-node=4", "-p", "main", "-o", "/dev/null", "--wrap", "srun hostname")
	log := awaitLog(t, s, id, "the tasks ended with code", longWait)
	if !strings.Contains(log, "ended with code 143") {
		t.Errorf("the log does not say that a signal ended it:\n%s", log)
	}
	savedWhenAsked(t, log)
	saved := savedStep(t, dir)
	if job := s.Await(t.Context(), winner, "over", lab.Job.Over); job.State() != "COMPLETED" {
		t.Errorf("the job that preempted: %v", job)
	}
	if at := resumed(t, s, id, 1); at != saved || saved == 0 {
		t.Errorf("began again at step %d, saved was %d\n%s", at, saved, jobLog(s, id))
	}
	s.Exec(t.Context(), "scancel", id)
	s.Await(t.Context(), id, "over", lab.Job.Over)
}
