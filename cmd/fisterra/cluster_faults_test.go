package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/ps/train"
)

// endless is a run that ends only because somebody ends it. Where its end is not that of a silent rank, no rank that a busy
// machine forgets for a while is to be taken for one.
var (
	endless = words(watched, "--peer-timeout 1m")
	watched = words("--epochs 1000000") // with the usual peer timeout
)

// oneEach starts one rank on each of the four nodes. srun ends no task because
// another did: how the others end is the program's own doing.
var oneEach = words("srun -N4 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0")

// named waits until the log of each process has an error that names the lost
// rank and its host.
func (x *step) named(limit time.Duration, rank int, host string, by ...string) {
	x.t.Helper()
	error := regexp.MustCompile(fmt.Sprintf(`the run failed.*rank %d (on |\()%s`, rank, host))
	for _, name := range by {
		eventually(x.t, limit, fmt.Sprintf("%s names rank %d on %s", name, rank, host), x.dir,
			func() bool { return error.MatchString(x.log(name)) }, x.state)
	}
}

// TestClusterWorkerKilled: where the reference system hung for ever.
func TestClusterWorkerKilled(t *testing.T) {
	s := slowCluster(t)
	t.Run("sync", func(t *testing.T) {
		x := startStep(t, s, filepath.Join(s.Dir, "sync"), oneEach, endless...)
		x.signal("worker2", "KILL")
		if code := x.wait(longWait); code == 0 {
			t.Errorf("exit code 0\n%s", x.state())
		}
		x.named(0, 3, x.hosts["worker2"], "ps0", "worker0", "worker1")
		x.gone(stepRoles...)
	})
	t.Run("async", func(t *testing.T) {
		x := startStep(t, s, filepath.Join(s.Dir, "async"), oneEach, words("--mode async --json", endless)...)
		x.signal("worker1", "KILL")
		eventually(t, longWait, "the server has lost worker1", x.dir, func() bool { return strings.Contains(x.log("ps0"), "ps 0 lost worker 1") }, x.state)
		before := x.saves()
		eventually(t, longWait, "the others go on", x.dir, func() bool { return x.saves() > before }, x.state)
		x.signalAll("USR1", "ps0", "worker0", "worker2")
		// srun's code is the killed task's.
		if code := x.wait(longWait); code != 128+9 {
			t.Errorf("exit code %d\n%s", code, x.state())
		}
		if r := lastResult(t, x.out.String()); !slices.Equal(r.Lost, []int{2}) || !r.Interrupted {
			t.Errorf("%+v", r)
		}
		x.gone(stepRoles...)
	})
	// A task that stands still is no lost one while its node answers pings of its own:
	// its heart is the process's.
	t.Run("stopped", func(t *testing.T) {
		x := startStep(t, s, filepath.Join(s.Dir, "stopped"), oneEach, watched...)
		x.signal("worker2", "STOP")
		x.named(longWait, 3, x.hosts["worker2"], "ps0", "worker0", "worker1")
		x.signal("worker2", "CONT")
		if code := x.wait(longWait); code == 0 {
			t.Errorf("exit code 0\n%s", x.state())
		}
	})
}

// lastResult is the result in mixed output.
func lastResult(t *testing.T, text string) (r train.Result) {
	t.Helper()
	i := strings.LastIndex(text, `{"schema"`)
	if i < 0 {
		t.Fatalf("no result in\n%s", text)
	}
	line, _, _ := strings.Cut(text[i:], "\n")
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	return r
}

// TestClusterNodeCrash: own heartbeats notice a node without power before Slurm
// does. Which comes first counts, not how soon: Slurm waits 60 s, the run 5 s.
func TestClusterNodeCrash(t *testing.T) {
	s := slowCluster(t, "SlurmdTimeout=60")
	x := startStep(t, s, filepath.Join(s.Dir, "sync"), oneEach, watched...)
	crashed := time.Now()
	s.Crash(x.node("worker2"))
	x.named(longWait, 3, x.hosts["worker2"], "ps0", "worker0", "worker1")
	r := s.Exec(t.Context(), "sinfo", "-h", "-n", x.hosts["worker2"], "-p", "main", "-o", "%T")
	if !strings.Contains(r.Stdout, "allocated") && !strings.Contains(r.Stdout, "mixed") {
		t.Errorf("Slurm has given the node up already when all have named the lost rank, %.1f s after the crash: %v\n%s", time.Since(crashed).Seconds(), r, x.state())
	}
	if log := x.log("ps0"); !strings.Contains(log, "no sign of life for ") {
		t.Errorf("ps0 did not miss the rank by its heartbeat:\n%s", log)
	}
	x.eventuallyGone(longWait, stepRoles[:3]...)
	// srun waits for the fourth task until Slurm hears that it is gone.
	s.Boot(x.node("worker2"))
	if code := x.wait(longWait); code == 0 {
		t.Errorf("exit code 0\n%s", x.state())
	}
}

// TestClusterNoKill: an asynchronous run with --no-kill goes on without the node
// that failed. With --signal and --requeue it is carried over all the same: srun's code is that of the signal, whatever
// became of the lost task, and the job begins again with all nodes.
func TestClusterNoKill(t *testing.T) {
	s := slowCluster(t, "SlurmdTimeout=20")
	dir := filepath.Join(s.Dir, "out")
	id := submit(t, s, words("--nodes 4 --ntasks-per-node 1 --no-kill --signal USR1@60 --requeue --checkpoint", dir, "-- --mode async --json --epochs 1000000 --checkpoint-every 25")...)
	running(t, s, id, 0)
	s.Crash(3)
	awaitLog(t, s, id, `rank.*lost|lost.*rank`, longWait)
	// Slurm takes the node out of the job, which goes on.
	s.Await(t.Context(), id, "smaller", func(j lab.Job) bool { return j["NumNodes"] == "3" && j.State() == "RUNNING" })
	// As Slurm does before the time limit, which for a job that has become smaller cannot be changed here any more.
	if r := s.Exec(t.Context(), "scancel", "-s", "USR1", id); r.Code != 0 {
		t.Fatal(r)
	}
	log := awaitLog(t, s, id, "the tasks ended with code", longWait)
	if r := lastResult(t, log); !slices.Equal(r.Lost, []int{3}) || !r.Interrupted || !strings.Contains(log, "ended with code 138") {
		t.Errorf("%+v\n%s", r, log)
	}
	saved := savedStep(t, dir)
	s.Await(t.Context(), id, "queued again", func(j lab.Job) bool { return j["Restarts"] == "1" && j.State() == "PENDING" })
	s.Boot(3)
	if at := resumed(t, s, id, 1); at != saved || saved == 0 {
		t.Errorf("began again at step %d, saved was %d\n%s", at, saved, jobLog(s, id))
	}
	if job := s.Job(t.Context(), id); job["NumNodes"] != "4" || job["Restarts"] != "1" {
		t.Errorf("%v", job)
	}
	s.Exec(t.Context(), "scancel", id)
	s.Await(t.Context(), id, "over", lab.Job.Over)
}

// TestClusterCable: a network that is gone for 8 s ends the run by name with the
// usual patience of 5 s, and is ridden through with 15 s: TCP tries again each second.
func TestClusterCable(t *testing.T) {
	s := slowCluster(t, "SlurmdTimeout=60")
	t.Run("default", func(t *testing.T) {
		x := startStep(t, s, filepath.Join(s.Dir, "default"), oneEach, watched...)
		s.Unplug(3)
		unplugged := time.Now()
		x.named(longWait, 3, x.hosts["worker2"], "ps0", "worker0", "worker1")
		t.Logf("all others have named the lost rank after %.1f s", time.Since(unplugged).Seconds())
		x.lasts(time.Until(unplugged.Add(8 * time.Second))) // the outage, which srun may not survive
		s.Plug(3)
		if code := x.wait(longWait); code == 0 {
			t.Errorf("exit code 0\n%s", x.state())
		}
		x.eventuallyGone(longWait, stepRoles...) // srun may have left before its tasks
	})
	t.Run("patient", func(t *testing.T) {
		x := startStep(t, s, filepath.Join(s.Dir, "patient"), oneEach, words(watched, "--peer-timeout 15s")...)
		s.Unplug(3)
		if !x.lasts(8*time.Second) || strings.Contains(x.state(), "rank lost") {
			t.Fatalf("ended while the cable was out\n%s", x.state())
		}
		s.Plug(3)
		before := x.saves()
		eventually(t, longWait, "the run goes on", x.dir, func() bool { return x.saves() > before }, x.state)
		x.signalAll("USR1", stepRoles...)
		if code := x.wait(longWait); code != 128+10 || strings.Contains(x.state(), "rank lost") {
			t.Errorf("exit code %d\n%s", code, x.state())
		}
		x.gone(stepRoles...)
	})
	t.Run("for ever", func(t *testing.T) {
		x := startStep(t, s, filepath.Join(s.Dir, "forever"), oneEach, watched...)
		s.Unplug(3)
		x.named(longWait, 3, x.hosts["worker2"], "ps0", "worker0", "worker1")
		// The one without a cable ends, too, and says that it is alone.
		eventually(t, longWait, "the rank that is cut off ends", x.dir, func() bool {
			return strings.Contains(x.log("worker2"), "the run failed")
		}, x.state)
		s.Plug(3) // for srun to hear of it
		x.eventuallyGone(longWait, stepRoles...)
		// Slurm tries for some 12 s to tell srun of a task's end, and srun waits for ever for what it is not told.
		if x.lasts(20 * time.Second) {
			t.Log("srun has not heard of the end of all tasks: it is cancelled")
			s.Exec(t.Context(), "scancel", "--state=RUNNING", "--user=root")
		}
		if code := x.wait(longWait); code == 0 {
			t.Errorf("exit code 0\n%s", x.state())
		}
	})
}

// TestClusterFence: Slurm requeues the job of a node whose slurmd is gone while
// the task there lives on. That task finds no way into the new run, and its saved state is
// not overwritten.
func TestClusterFence(t *testing.T) {
	s := clusterFirst(t, "SlurmdTimeout=20")
	let := filepath.Join(s.Dir, "let") // tasks wait for let.RESTART.RANK
	script := fmt.Sprintf(`#!/bin/bash
#SBATCH -N2 --ntasks-per-node=1 --nodelist=%[4]s --requeue -o %[1]s/%%j.log --open-mode=append
echo "restart ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"
srun --kill-on-bad-exit=0 --wait=0 bash -c 'echo $$ >%[2]s.pid.${SLURM_RESTART_COUNT:-0}.$SLURM_PROCID
  until [ -e %[2]s.${SLURM_RESTART_COUNT:-0}.$SLURM_PROCID ]; do sleep 0.05; done
  unset SLURM_STEP_RESV_PORTS # they differ; the other ports do not
  exec %[3]s train --ps 1 --workers 1 --epochs 2 --peer-timeout 1m --json --start-timeout $((20 + 280 * ${SLURM_RESTART_COUNT:-0}))s -v 2>%[2]s.err.${SLURM_RESTART_COUNT:-0}.$SLURM_PROCID'
echo "the tasks ended with code $?"
`, s.Dir, let, lab.Fisterra(t), s.Nodes[0])
	id := s.Submit(t.Context(), script)
	release := func(restart, rank int) {
		if err := os.WriteFile(fmt.Sprintf("%s.%d.%d", let, restart, rank), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(format string, args ...any) func() bool {
		return func() bool { return fileExists(let + fmt.Sprintf(format, args...)) }
	}
	state := func() string { return jobLog(s, id) + fmt.Sprint(s.Job(t.Context(), id)) }
	eventually(t, longWait, "both tasks wait", s.Dir, func() bool { return exists(".pid.0.0")() && exists(".pid.0.1")() }, state)
	pid, err := os.ReadFile(filepath.Join(s.Dir, "state."+s.Nodes[1], "slurmd.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if r := s.On(t.Context(), 1, "kill", "-KILL", strings.TrimSpace(string(pid))); r.Code != 0 {
		t.Fatal(r)
	}
	t.Parallel()
	// On other nodes, but with position 0 where it was, listening at the same ports.
	eventually(t, 2*longWait, "the job runs again", s.Dir, exists(".pid.1.0"), state)
	release(1, 0)
	eventually(t, longWait, "its position 0 is there", s.Dir, exists(".err.1.0"), state)
	release(0, 1) // the one that lives on
	old := func() string { text, _ := os.ReadFile(let + ".err.0.1"); return string(text) }
	eventually(t, longWait, "the old task fails to get in", s.Dir, func() bool { return strings.Contains(old(), "did not find position 0") }, func() string { return old() + state() })
	if want := "another job.step.restart than " + id + ".0.0"; !strings.Contains(old(), want) {
		t.Errorf("it does not say %q: %s", want, old())
	}
	release(1, 1)
	log := awaitLog(t, s, id, "the tasks ended with code", longWait)
	if r := lastResult(t, log); r.Ranks != 2 || len(r.Lost) != 0 || !strings.Contains(log, "ended with code 0") {
		t.Errorf("the new run: %s", log)
	}
}

// TestClusterOldIncarnationSavesNothing: a run whose node Slurm has given up
// goes on there, alive and training, while the requeued job resumes elsewhere. The old one's
// next save ends it, and changes nothing of what the new one goes on from.
func TestClusterOldIncarnationSavesNothing(t *testing.T) {
	s := slowCluster(t, "SlurmdTimeout=20")
	dir := filepath.Join(s.Dir, "state")
	// The step is on the second node of the job, away from the script.
	script := fmt.Sprintf(`#!/bin/bash
#SBATCH -N2 --ntasks-per-node=4 --nodelist=%[1]s --requeue -o %[2]s/%%j.log --open-mode=append
echo "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"
node=$(scontrol show hostnames $SLURM_JOB_NODELIST | tail -n 1)
export OUT=%[2]s/out.${SLURM_RESTART_COUNT:-0}
srun -N1 -n4 --nodelist=$node --kill-on-bad-exit=0 --wait=0 bash -c 'exec %[3]s train --transport tcp --epochs 1000000 --peer-timeout 1m --checkpoint %[4]s --checkpoint-every 25 --out $OUT >$OUT.$SLURM_PROCID 2>&1'
echo "the tasks ended with code $?"
`, s.Nodes[0], s.Dir, lab.Fisterra(t), dir)
	id := s.Submit(t.Context(), script)
	log := func(restart int) string {
		text, _ := os.ReadFile(filepath.Join(s.Dir, fmt.Sprintf("out.%d", restart), "worker0.log"))
		return string(text)
	}
	state := func() string {
		return jobLog(s, id) + fmt.Sprint(s.Job(t.Context(), id)) + "\nfirst:\n" + log(0) + "\nrequeued:\n" + log(1)
	}
	saves := func(restart int) func() bool {
		return func() bool { return strings.Contains(log(restart), "saved a checkpoint") }
	}
	eventually(t, longWait, "the first incarnation saves", s.Dir, saves(0), state)
	old := startedLine.FindStringSubmatch(log(0))
	if old == nil || old[2] != s.Nodes[1] {
		t.Fatalf("the step is not on %s:\n%s", s.Nodes[1], state())
	}
	pid, err := os.ReadFile(filepath.Join(s.Dir, "state."+s.Nodes[1], "slurmd.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if r := s.On(t.Context(), 1, "kill", "-KILL", strings.TrimSpace(string(pid))); r.Code != 0 {
		t.Fatal(r)
	}
	eventually(t, 2*longWait, "the requeued job has claimed the directory", s.Dir, func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, ownerFile))
		return strings.Contains(string(text), `"restart":1`)
	}, state)
	at := len(log(0))
	eventually(t, longWait, "the old incarnation ends itself at its next save", s.Dir, func() bool {
		return regexp.MustCompile(`the run failed.*was taken over by job ` + id + `, restart 1`).MatchString(log(0))
	}, state)
	t.Logf("the old incarnation's chief was alive after the requeue, and wrote %q", log(0)[at:])
	eventually(t, longWait, "the requeued job resumes", s.Dir, func() bool {
		return regexp.MustCompile(`resumed from a checkpoint.* step=\d+`).MatchString(log(1))
	}, state)
	before := savedStep(t, dir)
	eventually(t, longWait, "the new incarnation saves", s.Dir, func() bool { return savedStep(t, dir) > before }, state)
	if text, err := os.ReadFile(filepath.Join(dir, ownerFile)); err != nil || !strings.Contains(string(text), `"restart":1`) {
		t.Errorf("owner %s, %v", text, err)
	}
	eventuallyGone(t, s, longWait, map[string]int{old[3]: 1}, state)
	s.Exec(t.Context(), "scancel", id)
	s.Await(t.Context(), id, "over", lab.Job.Over)
}
