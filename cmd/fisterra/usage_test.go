package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// huge is more than there can be of anything.
const huge = "9223372036854775807"

func TestUsageErrors(t *testing.T) {
	twoTasks := []string{"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=x[1-2]", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_TASKS_PER_NODE=1(x2)",
		"SLURM_NODEID=0", "SLURM_PROCID=0", "SLURM_LOCALID=0"}
	for _, c := range []struct {
		args []string
		env  []string
		want string // in the one message
	}{
		{args: []string{"nonsense"}, want: `unknown command "nonsense"; fisterra --help lists`},
		{args: []string{"help", "nonsense"}, want: `unknown command "nonsense"; fisterra --help lists`},
		{args: []string{"bench", "nonsense"}, want: `unknown command "nonsense"; fisterra bench --help lists`},
		{args: []string{"help", "bench", "nonsense"}, want: `unknown command "nonsense"; fisterra bench --help lists`},
		{args: []string{"template", "nonsense"}, want: `unknown command "nonsense"; fisterra template --help lists`},
		{args: []string{"completion", "bash", "nonsense"}, want: `bash takes no arguments, got "nonsense"`},
		{args: []string{"completion", "nonsense"}, want: `unknown command "nonsense"; fisterra completion --help lists`},
		{args: []string{"help", "version", "more"}, want: `"more": fisterra version has no commands of its own`},
		{args: []string{"train", "--mode", "turbo"}, want: "turbo"},
		{args: []string{"train", "--ps", "1", "--workers", "0"}, want: "--workers 0"},
		{args: []string{"train", "--data", "/no/such/file"}, want: "/no/such/file"},
		{args: []string{"train", "--model", "gpt"}, want: "gpt"},
		{args: []string{"train", "--lr", "NaN"}, want: "--lr NaN"},
		{args: []string{"train", "--checkpoint-every", "5"}, want: "without --checkpoint"},
		{args: []string{"train", "--aggregate", "4"}, want: "--aggregate 4"},
		{args: []string{"train", "--batch", "2"}, want: "--batch 2 for 3 workers"},
		{args: []string{"run", "-n", "3", "--", "FISTERRA", "train", "--batch", "1"}, want: "--batch 1 for 2 workers"},
		{args: []string{"train", "--roles", "ps,worker", "--ps", "3"}, want: "--roles ps,worker and --ps 3 exclude each other"},
		{args: []string{"train", "--roles", "ps,worker", "--placement", "last"}, want: "--placement last"},
		{args: []string{"train", "--mode", "async", "--ps", "0"}, want: "--mode async without parameter servers"},
		{args: []string{"train", "--mode", "async", "--aggregate", "2"}, want: "--aggregate 2 with --mode async"},
		{args: []string{"train", "--ps", "0", "--aggregate", "2"}, want: "--aggregate 2 without parameter servers"},
		{args: []string{"run", "--timeout", "-5s", "--", "true"}, want: "--timeout -5s"},
		{args: []string{"bench", "allreduce", "--sizes", ","}, want: `--sizes ","`},
		{args: []string{"bench", "scale", "--ranks", ","}, want: `--ranks ","`},
		{args: []string{"bench", "scale", "--ranks", "1,16"}, want: `"1" is not a number of ranks from 2`},
		{args: []string{"bench", "tune", "--sizes", ","}, want: `--sizes ","`},
		{args: []string{"spec", "--port-base", "0"}, want: "--port-base 0"},
		{args: []string{"spec", "--port-base", "70000"}, want: `--port-base: slurm: "70000"`, env: twoTasks},
		{args: []string{"spec", "--roles", "ps,worker,worker"}, want: "--roles: slurm: fewer tasks than roles", env: twoTasks},
		{args: []string{"train", "--infiniband", "off"}, want: "write --infiniband=off"},
		{args: []string{"train", "off"}, want: `takes no arguments, got "off"`},
		{args: []string{"version", "more"}, want: `takes no arguments, got "more"`},
		{args: []string{"hosts", "n[1-"}, want: "n[1-"},
		{args: []string{"hosts", ""}, want: "no names"},
		{args: []string{"hosts", "n[1", "3]"}, want: `"n[1": column 2: bracket is not closed`},
		{args: []string{"hosts", "n[1-256][1-1024]", "m1"}, want: "262145 names or more, the limit is 262144"},
		{args: []string{"train", "--checkpoint", ""}, want: `--checkpoint "": it has no value`},
		{args: []string{"bench", "latency", "--site="}, want: `--site "": it has no value`},
		{args: []string{"template", "slurm", "--out="}, want: `--out "": it has no value`},
		{args: []string{"template", "slurm", "--", "--data="}, want: `after --: --data "": it has no value`},
		{args: []string{"run", "-n", "0", "--", "true"}, want: "-n 0"},
		{args: []string{"run", "-n", huge, "--", "true"}, want: "-n " + huge + ": want 1 to 65536"},
		{args: []string{"bench", "latency", "-n", huge}, want: "-n " + huge},
		{args: []string{"bench", "init", "-n", huge}, want: "-n " + huge},
		{args: []string{"bench", "explain", "-n", huge}, want: "-n " + huge},
		{args: []string{"bench", "scale", "--ranks-per-node", huge, "--distribution", "cyclic"}, want: "--ranks-per-node " + huge},
		{args: []string{"bench", "bw", "-W", "4611686018427387904"}, want: "-W 4611686018427387904: want 1 to 1048576"},
		{args: []string{"train", "--batch", huge, "--workers", "65536"}, want: "65537 ranks"},
		{args: []string{"train", "--epochs", huge}, want: "--epochs " + huge},
		{args: []string{"train", "--hidden", huge}, want: "--hidden " + huge},
		{args: []string{"run", "-n", "2", "--", "no-such-program"}, want: "no-such-program"},
		{args: []string{"run", "--out", "/dev/null/x", "--", "true"}, want: "--out: mkdir /dev/null"},
		{args: []string{"spec"}, want: "Slurm"},
		{args: []string{"train", "--ps", "0", "--workers", "1", "--start-timeout", "0"}, want: "--start-timeout 0s"},
		{args: []string{"spec", "--address-rule", "ib0", "--start-timeout", "-1s"}, want: "--start-timeout -1s", env: twoTasks},
		{args: []string{"bench", "latency", "-m", "9:1"}, want: "9:1"},
		{args: []string{"bench", "latency", "-m", ":"}, want: "-m :"},
		{args: []string{"bench", "bw", "-W", "0"}, want: "-W 0"},
		{args: []string{"bench", "bw", "-i", "-5"}, want: "-i -5"},
		{args: []string{"bench", "bw", "--budget", "-1s"}, want: "--budget -1s"},
		{args: []string{"train", "--peer-timeout", "-1s"}, want: "--peer-timeout -1s"},
		{args: []string{"train", "--stall-after", "-1s"}, want: "--stall-after -1s"},
		{args: []string{"bench", "tune", "--collectives", "fisterra"}, want: "--collectives fisterra"},
		{args: []string{"bench", "model", "--collectives", "native"}, want: "--collectives native"},
		{args: []string{"bench", "explain", "--transport", "ib"}, want: `--transport "ib"`},
		{args: []string{"train"}, env: []string{"SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_PROCID=0"}, want: "srun"},
		{args: []string{"run", "-n", "3", "--", "FISTERRA", "train", "--ps", "1", "--workers", "4"}, want: "5"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			for i, a := range c.args {
				if a == "FISTERRA" {
					c.args[i] = lab.Fisterra(t)
				}
			}
			cmd := lab.Command(t.Context(), t, lab.Fisterra(t), c.args...)
			cmd.Env = append(os.Environ(), c.env...)
			r := cmd.Run()
			if r.Code != 2 {
				t.Errorf("want exit code 2: %s", r)
			}
			if !strings.Contains(r.Stderr, c.want) {
				t.Errorf("want %q in the message: %s", c.want, r)
			}
			if strings.Contains(r.Stderr, "goroutine ") { // whose exit code is 2, too
				t.Errorf("a crash: %s", r)
			}
		})
	}
}

// TestRefusalIsSaidOnce: by the process that would start the ranks, and not by each of them.
func TestRefusalIsSaidOnce(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code []int
	}{
		{"train --infiniband", []int{exitAbsent, exitUsage}}, // without a device, and with one that only an MPI library drives
		{"train --infiniband --transport tcp", []int{exitAbsent}},
		{"train --transport mpi", []int{exitUsage}},
		{"train --collectives native", []int{exitAbsent}},
		{"train --address-rule nosuch0", []int{exitAbsent}},
		{"bench latency --congestion-control nosuch", []int{exitAbsent}},
		{"bench latency --site /no/such/site", []int{exitUsage}},
		{"bench init --start-timeout 0", []int{exitUsage}},
		{"bench latency --format xml", []int{exitUsage}},
		{"bench latency -n 3", []int{exitUsage}},
		{"bench latency -n 1", []int{exitUsage}},
		{"bench pairs -n 3", []int{exitUsage}},
		{"bench put -n 3", []int{exitUsage}},
		{"bench allreduce --sizes 64M,7", []int{exitUsage}},
		{"bench tune -n 0", []int{exitUsage}},
		{"bench model -n 0", []int{exitUsage}},
		{"bench tune --budget -1s", []int{exitUsage}},
		{"bench model --budget -1s", []int{exitUsage}},
		{"bench model --check --budget 0", []int{exitUsage}},
		{"bench tune --op allreduce,exscan", []int{exitUsage}},
		{"bench tune --sizes 8,7", []int{exitUsage}},
		{"bench model --check --sizes 7", []int{exitUsage}},
		{"info --transport bogus", []int{exitUsage}},
		{"info --infiniband=on --transport tcp", []int{exitAbsent}},
		{"info --peer-timeout -1s", []int{exitUsage}},
		{"info --site /no/such/site", []int{exitUsage}},
		{"info --roles boss", []int{exitUsage}},
		{"info --placement middle", []int{exitUsage}},
		{"train --placement middle", []int{exitUsage}},
		{"train --roles ps,ps", []int{exitUsage}},
		{"train --roles ps,worker,evaluator", []int{exitUsage}},
		{"train --data " + pipe, []int{exitUsage}},
		{"train --epochs " + huge, []int{exitUsage}},
		{"bench scale --plan none", []int{exitUsage}},
		{"bench scale --plan memory", []int{exitUsage}},
		{"bench scale --ranks 48,4 --plan node+doubling", []int{exitUsage}},
		{"bench scale --sizes 8,7", []int{exitUsage}},
		{"bench scale --sizes 8,many", []int{exitUsage}},
		{"bench scale --ranks 4,many", []int{exitUsage}},
		{"bench scale --plot /proc/none", []int{exitUsage}},
		{"train --out /proc/none", []int{exitUsage}},
		{"train --checkpoint /proc/none", []int{exitUsage}},
		{"train --out /proc/self", []int{exitUsage}}, // which is there, and takes no files
		{"train --checkpoint /proc/self", []int{exitUsage}},
	} {
		r := fisterra(t, strings.Fields(c.args)...)
		if !slices.Contains(c.code, r.Code) || strings.Count(r.Stderr, "fisterra: ") != 1 || r.Stdout != "" {
			t.Errorf("%s: want an exit code of %v and one message: %v", c.args, c.code, r)
		}
	}
}

// TestSizesBeyondMemory: of 64 GiB of addresses, since machines differ in what they promise.
func TestSizesBeyondMemory(t *testing.T) {
	for _, args := range []string{"bench tune --sizes 1024G", "bench scale --sizes 8,1024G"} {
		r := lab.Command(t.Context(), t, "sh", append([]string{"-c", `ulimit -v 67108864; exec "$0" "$@"`, lab.Fisterra(t)}, words(args)...)...).Run()
		if r.Code != exitFailed || strings.Count(r.Stderr, "fisterra: ") != 1 || !strings.Contains(r.Stderr, "1099511627776 bytes") || r.Stdout != "" {
			t.Errorf("%s: want exit code %d and one message: %v", args, exitFailed, r)
		}
	}
}

func TestVersionHasTwoNames(t *testing.T) {
	a, b := fisterra(t, "--version"), fisterra(t, "version")
	if a.Code != 0 || a.Stdout != b.Stdout || !strings.HasPrefix(a.Stdout, "fisterra "+version) {
		t.Errorf("--version: %v\nversion: %v", a, b)
	}
}

// full is a disk on which there is no room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// What cannot be written is no success.
func TestFullStandardOutput(t *testing.T) {
	for _, args := range [][]string{{"hosts", "n[1-3]"}, {"version"}, {"bench", "explain"}} {
		var errs bytes.Buffer
		code := run(args, environment{stdin: strings.NewReader(""), stdout: full{}, stderr: &errs, lookup: func(string) (string, bool) { return "", false }})
		if code != exitFailed || !strings.Contains(errs.String(), "standard output: no space left") {
			t.Errorf("%v: exit code %d, %q", args, code, &errs)
		}
	}
}
