package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// TestClusterTemplate submits scripts as they are written and reads what they did.
func TestClusterTemplate(t *testing.T) {
	s := onCluster(t)
	t.Run("array", func(t *testing.T) {
		dir := filepath.Join(s.Dir, "array")
		id := submit(t, s, words("--array 0-2 --output", s.Dir+"/%A.%a.log", "--ntasks-per-node 2 --memory per-cpu --checkpoint", dir, "-- --epochs 3 --checkpoint-every 100 --json")...)
		for i := range 3 {
			log := filepath.Join(s.Dir, fmt.Sprintf("%s.%d.log", id, i))
			eventually(t, longWait, "end of task "+log, s.Dir, func() bool {
				text, _ := os.ReadFile(log)
				return strings.Contains(string(text), "the tasks ended with code 0")
			}, func() string { text, _ := os.ReadFile(log); return string(text) })
			if saved := savedStep(t, filepath.Join(dir, fmt.Sprint(i))); saved < 100 {
				t.Errorf("task %d saved step %d", i, saved)
			}
			text, _ := os.ReadFile(log)
			if !strings.Contains(string(text), `"ranks":2`) || !strings.Contains(string(text), "memory of a task: 250 MB") {
				t.Errorf("task %d:\n%s", i, text)
			}
		}
	})
	script := func(args ...string) string {
		r := lab.Command(t.Context(), t, lab.Fisterra(t), append(words("template slurm"), args...)...).Run()
		if r.Code != 0 {
			t.Fatal(r)
		}
		return r.Stdout
	}
	t.Run("array by sbatch", func(t *testing.T) { // its tasks would share a directory
		id := s.Submit(t.Context(), script("--checkpoint", filepath.Join(s.Dir, "shared")), "--array=0-1", "--output="+s.Dir+"/%A_%a.log")
		for i := range 2 {
			task := fmt.Sprintf("%s_%d", id, i)
			job := s.Await(t.Context(), task, "over", lab.Job.Over)
			if log := jobLog(s, task); job["ExitCode"] != "1:0" || !strings.Contains(log, "give --array to") {
				t.Errorf("task %d: %v\n%s", i, job, log)
			}
		}
	})
	t.Run("cpus by sbatch", func(t *testing.T) { // which srun does not take from it
		program := filepath.Join(s.Dir, "step")
		if err := os.WriteFile(program, []byte("#!/bin/sh\nscontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		id := s.Submit(t.Context(), script("--ntasks-per-node", "1", "--program", program), "--cpus-per-task=2", "--output="+s.Dir+"/%j.log")
		if log := awaitLog(t, s, id, "the tasks ended with code", longWait); !strings.Contains(log, "CPUs=2 ") {
			t.Errorf("the step has not 2 CPUs:\n%s", log)
		}
	})
	for name, args := range map[string][]string{
		"placement": words("--nodes 2 --ntasks-per-node 3 --ps 2 --placement spread --cpus-per-task 1 --mpi pmix --memory 100 -J digits -t 5 -p main -- --epochs 1 --json -v"),
		"roles":     words("--ntasks-per-node 3 --roles worker,ps,worker -- --epochs 1 --json"),
		"tutorial":  words("--tutorial mnist-03 --partition main --cpus-per-task 1 -- --epochs 1 --json"),
		"serial":    words("--tutorial mnist-01 --memory site -- --epochs 1 --json"),
	} {
		t.Run(name, func(t *testing.T) {
			id := submit(t, s, args...)
			log := awaitLog(t, s, id, "the tasks ended with code", longWait)
			if !strings.Contains(log, "ended with code 0") || !strings.Contains(log, `"schema":"fisterra.train/1"`) {
				t.Errorf("%q:\n%s", args, log)
			}
			if name == "placement" { // on whichever two nodes are free; the table pads its cells, what servers log has one blank
				if m := regexp.MustCompile(`(?s)ps 0 {2,}(\S+).*ps 1 {2,}(\S+)`).FindStringSubmatch(log); m == nil || m[1] == m[2] {
					t.Errorf("the servers are not spread over the nodes:\n%s", log)
				}
			}
			if job := s.Await(t.Context(), id, "over", lab.Job.Over); job.State() != "COMPLETED" {
				t.Errorf("%v", job)
			}
		})
	}
}

// TestClusterArrayRequeue: of an array that asks for a signal and --requeue, the task that
// Slurm has signalled queues itself again, once, goes on at the saved step and ends well; the others
// run on. It is the last task, whose SLURM_JOB_ID is that of the whole array: requeued by
// that one, all would begin anew.
func TestClusterArrayRequeue(t *testing.T) {
	s := slowCluster(t)
	dir := filepath.Join(s.Dir, "states")
	// Endless until it is queued again.
	program := filepath.Join(s.Dir, "program")
	script := fmt.Sprintf("#!/bin/bash\nepochs=1000000; [ ${SLURM_RESTART_COUNT:-0} = 0 ] || epochs=1\nexec %s \"$@\" --epochs $epochs\n", lab.Fisterra(t))
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	id := submit(t, s, words("--array 0-2 --ntasks-per-node 2 --time 60 --signal USR1@110 --requeue --program", program, "--output", s.Dir+"/%A_%a.log", "--checkpoint", dir, "-- --transport tcp --peer-timeout 1m --checkpoint-every 25")...)
	const last = 2
	task := func(i int) string { return fmt.Sprintf("%s_%d", id, i) }
	for i := range 3 {
		running(t, s, task(i), 0)
	}
	if job := s.Job(t.Context(), task(last)); job["JobId"] != id {
		t.Fatalf("the last task is job %s, not the array's %s: %v", job["JobId"], id, job)
	}
	limitTime(t, s, task(last), 2) // so that the signal is due; Slurm looks at its clocks every 30 s
	log := awaitLog(t, s, task(last), "the tasks ended with code", longWait)
	if !strings.Contains(log, "ended with code 138") {
		t.Errorf("the log does not say that USR1 ended it:\n%s", log)
	}
	limitTime(t, s, task(last), 60)
	savedWhenAsked(t, log)
	saved := savedStep(t, filepath.Join(dir, fmt.Sprint(last)))
	if at := resumed(t, s, task(last), 1); at != saved || saved == 0 {
		t.Errorf("began again at step %d, saved was %d\n%s", at, saved, jobLog(s, task(last)))
	}
	if job := s.Await(t.Context(), task(last), "over", lab.Job.Over); job.State() != "COMPLETED" || job["Restarts"] != "1" {
		t.Errorf("the task that was signalled: %v\n%s", job, jobLog(s, task(last)))
	}
	for i := range last {
		if job := s.Job(t.Context(), task(i)); job.State() != "RUNNING" || job["Restarts"] != "0" {
			t.Errorf("a task that was not signalled: %v\n%s", job, jobLog(s, task(i)))
		}
	}
	s.Exec(t.Context(), "scancel", id)
	for i := range last {
		s.Await(t.Context(), task(i), "over", lab.Job.Over)
	}
}
