package slurm

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// TestClusterRunsScripts: a running Slurm takes every golden script as it stands on sbatch's
// standard input, and what the script starts ends well. The partitions and features
// that the scripts name are there, modules are a function of the shell, and where a script asks
// for more memory than the nodes claim, sbatch's own option asks for less. Only with-hooks gets
// an argument that its golden script has not: ten steps of 10 s are too long.
func TestClusterRunsScripts(t *testing.T) {
	fisterra := lab.Fisterra(t)
	var partitions []string
	for _, name := range []string{"thin-shared", "cola-corta", "thinnodes"} {
		// Main's own tier: nobody preempts the others.
		partitions = append(partitions, "PartitionName="+name+" Nodes=ALL PriorityTier=10 PreemptMode=OFF")
	}
	cluster := lab.Cluster(t, 2, 24, partitions...)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	const features = "haswell,ib"
	if r := cluster.Exec(ctx, "scontrol", "update", "NodeName="+strings.Join(cluster.Nodes, ","), "AvailableFeatures="+features, "ActiveFeatures="+features); r.Code != 0 {
		t.Fatal(r)
	}
	for _, dir := range []string{"logs", "my logs"} {
		if err := os.Mkdir(filepath.Join(cluster.Dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cluster.Dir, "my program"), []byte("#!/bin/bash\nprintf '[%s]' \"$@\"\necho\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(cluster.Dir, "sleep"), "../examples/sleep")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
	t.Setenv("PATH", filepath.Dir(fisterra)+":"+os.Getenv("PATH"))
	t.Setenv("BASH_FUNC_module%%", `() { echo "module $*"; }`)

	const trained = "test accuracy  9"
	type expect struct {
		options []string // of sbatch, which go before the script's
		args    []string // after the golden script's
		tasks   []string // of an array
		says    []string
	}
	expected := map[string]expect{
		"full":                {says: []string{"module load gcc/12.2\nmodule load openmpi/4.1\n", "memory of a task: 246 MB", trained}},
		"array":               {tasks: []string{"1", "3", "5"}, says: []string{trained}},
		"roles":               {options: []string{"--mem-per-cpu=50"}, tasks: []string{"0", "1", "2", "3"}, says: []string{trained}},
		"quotes":              {says: []string{"[--checkpoint=it's $HOME; `touch pwned` \"x\"][][$(touch pwned)][a'b][--x=*][\\][é][two\nlines][-]\n"}},
		"tutorial-mnist-01":   {options: []string{"--mem-per-cpu=50"}, says: []string{trained}},
		"tutorial-mnist-02":   {options: []string{"--mem-per-cpu=50"}, says: []string{trained}},
		"tutorial-with-hooks": {args: []string{"--step", "100ms"}, says: []string{"memory of a task: 246 MB", "I am ps 0,", "global step 10\n"}},
	}
	type job struct{ name, id, log string }
	var jobs []job
	for name, b := range batches(t) {
		want := expected[name]
		b.Args = append(b.Args, want.args...)
		text, err := b.Script()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		id := cluster.Submit(ctx, text, want.options...)
		log := func(task string) string {
			return filepath.Join(cluster.Dir, strings.NewReplacer("%j", id, "%A", id, "%a", task).Replace(b.withDefaults().Output))
		}
		if want.tasks == nil {
			jobs = append(jobs, job{name, id, log("")})
		}
		for _, task := range want.tasks {
			jobs = append(jobs, job{name, id + "_" + task, log(task)})
		}
	}
	for _, j := range jobs {
		state := cluster.Await(ctx, j.id, "over", lab.Job.Over)
		text, err := os.ReadFile(j.log)
		if err != nil || state.State() != "COMPLETED" {
			t.Errorf("%s: %v\n%v\n%s", j.name, err, state, text)
		}
		says := expected[j.name].says
		if says == nil {
			says = []string{trained}
		}
		for _, want := range append(says, "restart 0, on c", "the tasks ended with code 0") {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: no %q in the log\n%s", j.name, want, text)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(cluster.Dir, "pwned")); err == nil {
		t.Error("the shell ran part of an argument")
	}
	for _, dir := range []string{"scratch/digits", "runs/3", "state of it/3", "it's $HOME; `touch pwned` \"x\""} {
		if _, err := os.Stat(filepath.Join(cluster.Dir, dir)); err != nil {
			t.Error(err)
		}
	}
}
