package slurm

import (
	"errors"
	"flag"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

func batches(t *testing.T) map[string]Batch {
	t.Helper()
	all := map[string]Batch{
		"default": {},
		"full": {
			JobName: "digits", Nodes: 2, TasksPerNode: 4, CPUsPerTask: 6, Time: "1-12:30", Partition: "thin-shared", Account: "phys.42", Constraint: "haswell&ib",
			Modules: []string{"gcc/12.2", "openmpi/4.1"}, Memory: MemoryPerCPU, PS: 2, Workers: 6, Placement: Spread, Signal: "USR1@60", Requeue: true, NoKill: true,
			Output: "logs/digits-%j.out", Error: "logs/digits-%j.err", Checkpoint: "scratch/digits", MPI: "pmi2", Args: []string{"--epochs", "3"},
		},
		"array":  {TasksPerNode: 2, Array: "1-5:2%2", Checkpoint: "runs", Signal: "USR1@60", Requeue: true},
		"roles":  {Nodes: 1, TasksPerNode: 3, MemoryPerTask: 2500, CPUsPerTask: 2, Roles: Roles{Worker, PS, Worker}, Array: "0-3%2", Checkpoint: "state of it"},
		"quotes": {TasksPerNode: 2, Output: "my logs/out #%j.log", Checkpoint: "it's $HOME; `touch pwned` \"x\"", Command: []string{"./my program"}, Args: []string{"", "$(touch pwned)", "a'b", "--x=*", "\\", "é", "two\nlines", "-"}},
	}
	for _, x := range Tutorials {
		all["tutorial-"+x.Name] = x.Batch
	}
	return all
}

func TestScriptsGolden(t *testing.T) {
	for name, b := range batches(t) {
		got, err := b.Script()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		file := filepath.Join("testdata/template", name+".sh")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || got != string(want) {
			t.Errorf("%s differs from %s (%v):\n%s", name, file, err, got)
		}
		if out, err := exec.Command("bash", "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s: bash does not read it: %v\n%s", name, err, out)
		}
	}
	if _, ok := TutorialNamed("mnist-05"); ok {
		t.Error("there is no fifth tutorial")
	}
	if x, ok := TutorialNamed("mnist-04"); !ok || x.Batch.CPUsPerTask != 6 {
		t.Errorf("mnist-04: %+v, %v", x, ok)
	}
}

// runScript runs a script with stand-ins for the Slurm commands that only print
// what they are given, and returns what the program would get, one word a line.
func runScript(t *testing.T, b Batch, env ...string) (words []string, output string, code int) {
	t.Helper()
	text, err := b.Script()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, body := range map[string]string{
		"srun":     `printf '%s\0' "$@" > words; exit ${SRUN_CODE:-0}`,
		"scontrol": `echo "scontrol $*" >> calls; [ "$1" != show ] || echo "$PARTITION_TEXT"`,
		"sinfo":    `printf "$SINFO_TEXT"`,
		"module":   `echo "module $*" >> calls; [ "$2" != missing ]`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("bash")
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(text)
	cmd.Env = append([]string{"PATH=" + dir + ":/usr/bin:/bin", "SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-2]", "SLURM_JOB_PARTITION=main"}, env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "words")); err == nil {
		words = strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
	}
	calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
	if _, err := os.Stat(filepath.Join(dir, "pwned")); err == nil {
		t.Error("the shell ran part of an argument")
	}
	return words, string(out) + string(calls), code
}

// Every argument reaches the program as it was given, whatever is in it.
func TestScriptQuoting(t *testing.T) {
	b := batches(t)["quotes"]
	words, out, code := runScript(t, b)
	want := append([]string{"--kill-on-bad-exit=0", "--wait=0", "./my program", "--checkpoint=" + b.Checkpoint}, b.Args...)
	if strings.Join(words, "|") != strings.Join(want, "|") || code != 0 {
		t.Errorf("code %d, words %q, want %q\n%s", code, words, want, out)
	}
}

func FuzzScriptQuoting(f *testing.F) {
	f.Add("it's", "$(id)`id`\n")
	f.Add("", "-n")
	f.Fuzz(func(t *testing.T, first, second string) {
		b := Batch{Command: []string{"prog", first}, Args: []string{second}}
		text, err := b.Script()
		if err != nil {
			if !errors.Is(err, ErrSyntax) {
				t.Fatal(err)
			}
			return
		}
		_, line, _ := strings.Cut(text, "\nsrun ")
		line = line[:strings.LastIndex(line, "\ncode=$?\n")]
		out, err := exec.Command("bash", "-c", "srun() { printf '%s\\0' \"$@\"; }\nsrun "+line).Output()
		words := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		if err != nil || len(words) != 5 || words[3] != first || words[4] != second {
			t.Fatalf("%q %q came out as %q (%v)", first, second, words, err)
		}
	})
}

func TestScriptMemoryRule(t *testing.T) {
	b := Batch{Nodes: 2, TasksPerNode: 4, CPUsPerTask: 6, Memory: MemoryPerCPU}
	for _, c := range []struct{ name, partition, sinfo, job, option, says string }{
		{"the partition's default", "   DefMemPerCPU=5120 MaxMemPerNode=UNLIMITED", "", "", "--mem-per-cpu=5120", "memory of a task: 30720 MB"},
		{"a share of the node", "   DefMemPerNode=UNLIMITED", `128000/24\n256000/24\n64000+/20+\n`, "", "--mem-per-cpu=3200", "memory of a task: 19200 MB"},
		{"the job's own", "   DefMemPerCPU=5120", "", "SLURM_MEM_PER_CPU=2000", "--mem-per-cpu=2000", "memory of a task: 12000 MB"},
		{"more than the job holds", "   DefMemPerCPU=5120", "", "SLURM_MEM_PER_NODE=24000 SLURM_CPUS_ON_NODE=24", "--mem-per-cpu=1000", "memory of a task: 6000 MB"},
		{"less than the job holds", "   DefMemPerCPU=512", "", "SLURM_MEM_PER_NODE=24000 SLURM_CPUS_ON_NODE=24", "--mem-per-cpu=512", "memory of a task: 3072 MB"},
		{"no more known than what the job holds", "", "", "SLURM_MEM_PER_NODE=24000 SLURM_CPUS_ON_NODE=24", "--mem-per-cpu=1000", "memory of a task: 6000 MB"},
		{"all of each node", "   DefMemPerCPU=5120", "", "SLURM_MEM_PER_NODE=0 SLURM_CPUS_ON_NODE=24", "--mem-per-cpu=5120", "memory of a task: 30720 MB"},
		{"nothing known", "", "", "", "", ""},
	} {
		words, out, _ := runScript(t, b, append(strings.Fields(c.job), "PARTITION_TEXT="+c.partition, "SINFO_TEXT="+c.sinfo)...)
		want := []string{"--kill-on-bad-exit=0", "--wait=0", "--cpus-per-task=6", c.option, "fisterra", "train"}
		if c.option == "" {
			want = append(want[:3], want[4:]...)
		}
		if strings.Join(words, " ") != strings.Join(want, " ") || !strings.Contains(out, c.says) {
			t.Errorf("%s: %q, want %q and %q in\n%s", c.name, words, want, c.says, out)
		}
	}
}

func TestScriptEnds(t *testing.T) {
	b := Batch{Signal: "USR1@60", Requeue: true, Modules: []string{"openmpi/4.1"}}
	for code, requeued := range map[string]bool{"0": false, "1": false, "138": true, "143": false} {
		_, out, got := runScript(t, b, "SRUN_CODE="+code)
		if !strings.Contains(out, "the tasks ended with code "+code) || strings.Contains(out, "scontrol requeue 7") != requeued || (got == 0) != (code == "0") {
			t.Errorf("code %s: exit %d\n%s", code, got, out)
		}
	}
	// The last task of an array has the array's job id, 7, which stands for them all.
	array := b
	array.Array = "1-5:2"
	if _, out, _ := runScript(t, array, "SRUN_CODE=138", "SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=5"); !strings.Contains(out, "scontrol requeue 7_5\n") {
		t.Errorf("a task of an array:\n%s", out)
	}
	b.Signal = "10"
	if _, out, _ := runScript(t, b, "SRUN_CODE=138"); !strings.Contains(out, "scontrol requeue 7") {
		t.Errorf("signal by number:\n%s", out)
	}
	b.Requeue = false
	if _, out, _ := runScript(t, b, "SRUN_CODE=138"); strings.Contains(out, "requeue") {
		t.Errorf("requeued unasked:\n%s", out)
	}
	b.Modules = []string{"missing"}
	if words, out, code := runScript(t, b); code != 1 || words != nil || !strings.Contains(out, "module missing cannot be loaded") {
		t.Errorf("a missing module: exit %d, %q\n%s", code, words, out)
	}
}

// A signal is taken where the program acts on it, and where the script can tell it from
// what else ends tasks.
func TestScriptSignals(t *testing.T) {
	other := []string{"./sleep"}
	for _, c := range []struct {
		command []string
		signal  string
		requeue bool
		says    string // "" where it is taken
		time    string
	}{
		{nil, "USR1@60", true, "", ""},
		{nil, "SIGUSR1", true, "", ""},
		{nil, "10@60", true, "", ""},
		{nil, "TERM@60", true, "scancel sends TERM", ""},
		{nil, "15@60", true, "scancel sends TERM", ""},
		{nil, "USR2@60", true, "never be queued again", ""},
		{nil, "KILL@60", true, "want of memory", ""},
		{nil, "HUP@60", true, "does not save on HUP", ""},
		{nil, "USR1@60", false, "", ""},
		{nil, "USR2@60", false, "", ""},
		{nil, "TERM@60", false, "", ""},
		{nil, "HUP@60", false, "does not save on HUP", ""},
		{nil, "40", false, "does not save on 40", ""},
		{[]string{"/opt/fisterra", "train", "--mode=async"}, "HUP", false, "does not save on HUP", ""},
		{other, "USR2@60", true, "", ""},
		{other, "HUP@60", true, "", ""},
		{other, "40", true, "", ""},
		{other, "TERM@60", true, "scancel sends TERM", ""},
		{other, "KILL", true, "want of memory", ""},
		{other, "TERM@60", false, "", ""},
		{other, "USR3", false, "no signal", ""},
		{other, "65", false, "no signal", ""},
		{nil, "USR1@600", true, "600 s before the end of a job of 600 s", "10"},
		{nil, "USR1@599", true, "", "10"},
		{nil, "USR1@600", false, "", "10"},
		{other, "USR1", true, "60 s before the end of a job of 60 s", "1"},
		{nil, "USR1@119", true, "", "1:30"}, // rounded up by Slurm
		{nil, "USR1@120", true, "a job of 120 s", "1:30"},
		{nil, "USR1@3600", true, "a job of 3600 s", "1:0:0"},
		{nil, "USR1@90000", true, "a job of 90000 s", "1-1"},
		{nil, "USR1@90060", true, "a job of 90060 s", "1-1:1"},
		{nil, "USR1@60000", true, "", "0"}, // without a limit
		{nil, "USR1@60000", true, "", "UNLIMITED"},
	} {
		_, err := Batch{Command: c.command, Signal: c.signal, Requeue: c.requeue, Time: c.time}.Script()
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, ErrSignal) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "--signal")) {
			t.Errorf("%q with --signal %s, requeue %v: %v; want %q", c.command, c.signal, c.requeue, err, c.says)
		}
	}
}

// What srun --mpi=list names is the site's.
func TestScriptTakesTheSitesMPI(t *testing.T) {
	for _, name := range []string{"none", "pmi2", "pmix", "pmix_v4", "cray_shasta", "openmpi"} {
		if text, err := (Batch{MPI: name}).Script(); err != nil || !strings.Contains(text, " --mpi="+name+" ") {
			t.Errorf("%s: %v in\n%s", name, err, text)
		}
	}
}

func TestScriptRefuses(t *testing.T) {
	for _, c := range []struct {
		batch  Batch
		source string
		is     error
	}{
		{Batch{JobName: "a b"}, "--job-name", ErrSyntax},
		{Batch{Time: "soon"}, "--time", ErrSyntax},
		{Batch{Partition: "p\n#SBATCH --uid=0"}, "--partition", ErrSyntax},
		{Batch{Account: "-x"}, "--account", ErrSyntax},
		{Batch{Constraint: "a;b"}, "--constraint", ErrSyntax},
		{Batch{Array: "1-"}, "--array", ErrSyntax},
		{Batch{Signal: "B:USR1@60"}, "--signal", ErrSyntax},
		{Batch{Modules: []string{"a;rm"}}, "--module", ErrSyntax},
		{Batch{Modules: []string{"-f"}}, "--module", ErrSyntax},
		{Batch{Output: "a\nb"}, "--output", ErrSyntax},
		{Batch{Error: `a"b`}, "--error", ErrSyntax},
		{Batch{Checkpoint: "a\x00b"}, "--checkpoint", ErrSyntax},
		{Batch{Args: []string{"a\x00b"}}, "", ErrSyntax},
		{Batch{Nodes: -1}, "--nodes", ErrRange},
		{Batch{TasksPerNode: 1 << 20}, "--ntasks-per-node", ErrRange},
		{Batch{CPUsPerTask: -1}, "--cpus-per-task", ErrRange},
		{Batch{CPUsPerTask: math.MaxInt, MemoryPerTask: 8 << 10}, "--cpus-per-task", ErrRange},
		{Batch{MemoryPerTask: math.MaxInt, CPUsPerTask: 2}, "--memory", ErrRange},
		{Batch{PS: math.MaxInt, Workers: math.MaxInt}, "--ps", ErrRange},
		{Batch{PS: 1, Workers: -1}, "--workers", ErrRange},
		{Batch{Wait: -1}, "--wait", ErrRange},
		{Batch{Memory: "much"}, "--memory", ErrSyntax},
		{Batch{MPI: "pmix v4"}, "--mpi", ErrSyntax},
		{Batch{MPI: "list"}, "--mpi", ErrSyntax},
		{Batch{Placement: "middle"}, "--placement", ErrRole},
		{Batch{PS: 1, Workers: 2}, "", ErrRoleCount},
		{Batch{Roles: Roles{PS}}, "--roles", ErrRoleCount},
		{Batch{Roles: Roles{PS, "boss"}, TasksPerNode: 2}, "", ErrRole},
		{Batch{Roles: Roles{PS, Worker}, TasksPerNode: 2, Workers: 1}, "--roles", ErrRole},
		{Batch{Roles: Roles{PS, Worker}, TasksPerNode: 2, Placement: First}, "--placement", ErrRole},
	} {
		text, err := c.batch.Script()
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, c.is) || e.Source != c.source {
			t.Errorf("%+v: %v; want %v of %q\n%s", c.batch, err, c.is, c.source, text)
		}
	}
}
