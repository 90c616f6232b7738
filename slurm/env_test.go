package slurm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// readEnv reads a captured environment.
func readEnv(t testing.TB, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	env := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			env[name] = value
		}
	}
	return env
}

func lookupIn(env map[string]string) Lookup {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

// rankRow is a line of ranks.tsv, the table of what each captured task is.
type rankRow struct {
	testCase, tag string
	field         map[string]string
}

func rankRows(t testing.TB) []rankRow {
	t.Helper()
	text, err := os.ReadFile("testdata/slurm-env/ranks.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	names := strings.Split(lines[0], "\t")
	var rows []rankRow
	for _, line := range lines[1:] {
		row := rankRow{field: make(map[string]string)}
		for i, v := range strings.Split(line, "\t") {
			row.field[names[i]] = v
		}
		row.testCase, row.tag = row.field["case"], row.field["tag"]
		rows = append(rows, row)
	}
	return rows
}

func (r rankRow) file() string {
	return filepath.Join("testdata/slurm-env", r.testCase+"."+r.tag+".env")
}

// Environments captured from Slurm 22.05: every task finds its place, batch and
// salloc shells are told to use srun, ranks of mpirun and mpiexec are not taken
// for tasks of the step.
func TestFromCapturedEnvironments(t *testing.T) {
	seen := make(map[string]bool)
	kinds := make(map[error]int)
	for _, row := range rankRows(t) {
		seen[filepath.Base(row.file())] = true
		env := readEnv(t, row.file())
		j, err := FromEnv(lookupIn(env))
		var want error
		switch {
		case strings.HasPrefix(row.testCase, "mpirun-slurm"), strings.HasPrefix(row.testCase, "hydra-slurm"):
			want = ErrDaemonStep
		case strings.HasPrefix(row.testCase, "mpirun-local"), strings.HasPrefix(row.testCase, "hydra-local"):
			want = ErrNotSlurm
		case strings.HasSuffix(row.tag, "batch"), row.testCase == "salloc":
			want = ErrNoStep
		}
		kinds[want]++
		if want != nil {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", row.file(), err, want)
			}
			if want == ErrNoStep && !strings.Contains(fmt.Sprint(err), "srun") {
				t.Errorf("%s: %v: does not say what to do", row.file(), err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", row.file(), err)
			continue
		}
		checkJob(t, row, env, j)
	}
	for _, want := range []error{ErrDaemonStep, ErrNotSlurm, ErrNoStep, nil} {
		if kinds[want] == 0 {
			t.Errorf("no captured environment with result %v", want)
		}
	}
	files, err := filepath.Glob("testdata/slurm-env/*.env")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		// Ranks of mpiexec -pmi-port have no rank in the environment and no line.
		if !seen[filepath.Base(f)] {
			if _, err := FromEnv(lookupIn(readEnv(t, f))); !errors.Is(err, ErrNotSlurm) && !errors.Is(err, ErrNoStep) {
				t.Errorf("%s is in no line of ranks.tsv and gives %v", f, err)
			}
		}
	}
}

func checkJob(t *testing.T, row rankRow, env map[string]string, j *Job) {
	t.Helper()
	for _, c := range []struct {
		column string
		got    string
	}{
		{"PROCID", strconv.Itoa(j.Rank)},
		{"LOCALID", strconv.Itoa(j.Local)},
		{"NODEID", strconv.Itoa(j.Node)},
		{"NODENAME", j.NodeName},
		{"NODENAME", j.Layout.Nodes[j.Node]},
		{"NTASKS", strconv.Itoa(j.Size())},
		{"NNODES", strconv.Itoa(len(j.Layout.Nodes))},
		{"JOB_NODELIST", j.NodeList},
		{"STEP_TASKS_PER_NODE", FormatTasksPerNode(j.Layout.Tasks)},
		{"GTIDS", formatInts(j.GTIDs)},
		{"STEP_ID", j.StepID},
	} {
		if c.got != row.field[c.column] {
			t.Errorf("%s: %s is %q, want %q", row.file(), c.column, c.got, row.field[c.column])
		}
	}
	nodes, err := Expand(row.field["STEP_NODELIST"])
	if err != nil || !slices.Equal(nodes, j.Layout.Nodes) {
		t.Errorf("%s: nodes %q, want %q (%v)", row.file(), j.Layout.Nodes, nodes, err)
	}
	if n, _ := strconv.Atoi(env["SLURM_JOB_ID"]); j.JobID != n || n == 0 {
		t.Errorf("%s: job %d, want %d", row.file(), j.JobID, n)
	}
	if n, _ := strconv.Atoi(env["SLURM_RESTART_COUNT"]); j.Restart != n {
		t.Errorf("%s: restart %d, want %d", row.file(), j.Restart, n)
	}
	if n, _ := strconv.Atoi(env["SLURM_CPUS_PER_TASK"]); j.CPUsPerTask != n {
		t.Errorf("%s: %d CPUs per task, want %d", row.file(), j.CPUsPerTask, n)
	}
	if want := env["SLURM_STEP_RESV_PORTS"]; want != "" && (len(j.Ports) == 0 || !strings.HasPrefix(want, strconv.Itoa(j.Ports[0]))) {
		t.Errorf("%s: ports %v, want %s", row.file(), j.Ports, want)
	}
}

// Where the site's default is pmi2, Hydra's ranks inherit what that plugin has given to
// Hydra's daemons; a task that srun starts out of a rank of Hydra's inherits from that.
func TestHydraWherePMI2IsTheDefault(t *testing.T) {
	files, err := filepath.Glob("testdata/slurm-env/hydra-slurm-4n2t.*.env")
	if err != nil || len(files) != 8 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		env := readEnv(t, file)
		env["SLURM_MPI_TYPE"], env["PMI_JOBID"] = "pmi2", "24.0"
		if j, err := FromEnv(lookupIn(env)); !errors.Is(err, ErrDaemonStep) || !strings.Contains(err.Error(), "PMI_RANK") {
			t.Errorf("%s: %+v, %v", file, j, err)
		}
	}
	env := readEnv(t, "testdata/slurm-env/pmi2-4n2t.t1.env")
	env["MPI_LOCALRANKID"], env["MPI_LOCALNRANKS"] = "0", "4"
	if j, err := FromEnv(lookupIn(env)); err != nil || j.Rank != 1 {
		t.Errorf("a task of srun: %+v, %v", j, err)
	}
}

// A step's environment with one thing wrong is refused, naming the variable.
func TestFromEnvRefuses(t *testing.T) {
	good := readEnv(t, "testdata/slurm-env/cyclic-4n2t.t5.env")
	for _, c := range []struct {
		set  map[string]string // "-" takes the variable away
		is   error
		says string
	}{
		{map[string]string{"SLURM_STEP_NODELIST": "-"}, ErrMissing, "SLURM_STEP_NODELIST is not set"},
		{map[string]string{"SLURM_STEP_NUM_TASKS": "-", "SLURM_NTASKS": "-"}, ErrMissing, "SLURM_NTASKS is not set: nor is SLURM_STEP_NUM_TASKS"},
		{map[string]string{"SLURM_STEP_TASKS_PER_NODE": "-", "SLURM_TASKS_PER_NODE": "-"}, ErrMissing, "SLURM_STEP_TASKS_PER_NODE is not set: 8 tasks on 4 nodes"},
		{map[string]string{"SLURM_PROCID": "-"}, ErrMissing, "SLURM_PROCID is not set"},
		{map[string]string{"SLURM_NODEID": "-1"}, ErrSyntax, `SLURM_NODEID="-1"`},
		{map[string]string{"SLURM_NODEID": "4"}, ErrInconsistent, "the step has 4 nodes"},
		{map[string]string{"SLURM_LOCALID": "2"}, ErrInconsistent, "node 1 (n1) has 2 tasks"},
		{map[string]string{"SLURM_PROCID": "8"}, ErrInconsistent, "the step has 8 tasks"},
		{map[string]string{"SLURM_PROCID": "four"}, ErrSyntax, "want a whole number"},
		{map[string]string{"SLURM_STEP_NUM_TASKS": "9"}, ErrInconsistent, "8 tasks in all, but SLURM_STEP_NUM_TASKS is 9"},
		{map[string]string{"SLURM_STEP_NUM_TASKS": "-", "SLURM_NTASKS": "9"}, ErrInconsistent, "8 tasks in all, but SLURM_NTASKS is 9"},
		{map[string]string{"SLURM_STEP_TASKS_PER_NODE": "-", "SLURM_TASKS_PER_NODE": "2(x3),3"}, ErrInconsistent, `SLURM_TASKS_PER_NODE="2(x3),3": 9 tasks in all`},
		{map[string]string{"SLURM_STEP_TASKS_PER_NODE": "-", "SLURM_TASKS_PER_NODE": "2(x"}, ErrSyntax, `SLURM_TASKS_PER_NODE="2(x"`},
		{map[string]string{"SLURM_STEP_TASKS_PER_NODE": "16777216(x4)"}, ErrRange, "SLURM_STEP_TASKS_PER_NODE: 16777216 tasks on node 1"},
		{map[string]string{"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, ErrInconsistent, "4 nodes, but tasks per node are given for 3"},
		{map[string]string{"SLURM_STEP_TASKS_PER_NODE": "2(x"}, ErrSyntax, `SLURM_STEP_TASKS_PER_NODE="2(x"`},
		{map[string]string{"SLURM_STEP_NODELIST": "n[0-3"}, ErrSyntax, `SLURM_STEP_NODELIST="n[0-3": column 2: bracket is not closed`},
		{map[string]string{"SLURM_STEP_NODELIST": "n[0-2],n1"}, ErrRepeated, "the same host as node 1 and node 3"},
		{map[string]string{"SLURMD_NODENAME": "n9"}, ErrInconsistent, "node 1 of the step's list is n1"},
		{map[string]string{"SLURMD_NODENAME": "n3", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NUM_TASKS": "7"}, ErrInconsistent, "node 3 (n3) has 1 tasks, local ids 0 to 0"},
		{map[string]string{"SLURM_GTIDS": "1,2,3"}, ErrInconsistent, "3 ranks, but node 1 (n1) has 2 tasks"},
		{map[string]string{"SLURM_GTIDS": "1,6"}, ErrInconsistent, "local id 1 is rank 6 there, but SLURM_PROCID is 5"},
		{map[string]string{"SLURM_GTIDS": "1;5"}, ErrSyntax, `SLURM_GTIDS="1;5"`},
		{map[string]string{"SLURM_STEP_RESV_PORTS": "18001-"}, ErrSyntax, `SLURM_STEP_RESV_PORTS="18001-"`},
		{map[string]string{"SLURM_JOB_ID": "x"}, ErrSyntax, "SLURM_JOB_ID"},
		{map[string]string{"TFSERVER": "10.0.0.1 10.0.0.2"}, ErrInconsistent, "2 addresses for 4 nodes"},
		{map[string]string{"SLURM_STEP_ID": "4294967290"}, ErrNoStep, "srun"},
		{map[string]string{"FISTERRA_RANK": "1"}, ErrDaemonStep, `FISTERRA_RANK="1": this rank was started by another launcher`},
	} {
		env := maps.Clone(good)
		for name, value := range c.set {
			if env[name] = value; value == "-" {
				delete(env, name)
			}
		}
		j, err := FromEnv(lookupIn(env))
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %+v, %v; want %q", c.set, j, err, c.says)
		}
	}
}

func TestAllocationOfABatchScript(t *testing.T) {
	a, ok, err := AllocationFromEnv(lookupIn(readEnv(t, "testdata/slurm-env/requeue.restart1.batch.env")))
	if err != nil || !ok || a.JobID != 38 || a.Restart != 1 || a.NodeList != "n[0-1]" || a.Partition != "main" || a.Cluster != "lab" {
		t.Errorf("%+v, %v, %v", a, ok, err)
	}
	if _, ok, err := AllocationFromEnv(lookupIn(nil)); ok || err != nil {
		t.Errorf("outside Slurm: %v, %v", ok, err)
	}
}

func FuzzFromEnv(f *testing.F) {
	f.Add("n[0-3]", "2(x4)", "0,1", "block", "18000-18002", "")
	f.Add("n[1-2],m5", "1,2,1", "", "", "", "10.0.0.1\n10.0.0.2 10.0.0.3")
	f.Fuzz(func(t *testing.T, nodes, tasks, gtids, job, ports, tfserver string) {
		env := map[string]string{
			"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_GTIDS": gtids, "SLURM_JOB_ID": job,
			"SLURM_STEP_RESV_PORTS": ports,
			"SLURM_NODEID":          "0", "SLURM_LOCALID": "0", "SLURM_PROCID": "0",
		}
		if tfserver != "" {
			env["TFSERVER"] = tfserver
		}
		if counts, err := ParseTasksPerNode(tasks); err == nil {
			sum := 0
			for _, n := range counts {
				sum += n
			}
			env["SLURM_NTASKS"] = strconv.Itoa(sum)
			if sum > 1<<16 {
				return // a layout of that many ranks is right, but slow
			}
		}
		j, err := FromEnv(lookupIn(env))
		if err != nil {
			return
		}
		if node, local, err := j.Layout.Place(j.Position()); node != j.Node || local != j.Local || err != nil {
			t.Errorf("position %d is at %d/%d, %v; want %d/%d", j.Position(), node, local, err, j.Node, j.Local)
		}
	})
}

// What Slurm 22.05 tells the tasks of `srun -w c7103 -n1 : -w c7101,c7102 -n3`: the list and the numbers of tasks are sorted
// by the nodes' names, SLURM_NODEID is not.
func TestHeterogeneousStep(t *testing.T) {
	for _, c := range []struct{ name, node, local, rank, gtids, position string }{
		{"c7103", "0", "0", "0", "0", "3"},
		{"c7101", "1", "0", "1", "1,2", "0"},
		{"c7101", "1", "1", "2", "1,2", "1"},
		{"c7102", "2", "0", "3", "3", "2"},
	} {
		j, err := FromEnv(lookupIn(map[string]string{
			"SLURM_JOB_ID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "c[7101-7103]", "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)", "SLURM_STEP_NUM_TASKS": "4",
			"SLURMD_NODENAME": c.name, "SLURM_NODEID": c.node, "SLURM_LOCALID": c.local, "SLURM_PROCID": c.rank, "SLURM_GTIDS": c.gtids,
		}))
		if err != nil {
			t.Errorf("rank %s: %v", c.rank, err)
		} else if got := strconv.Itoa(j.Position()); got != c.position || j.Layout.Nodes[j.Node] != c.name {
			t.Errorf("rank %s: position %s on %s, want %s on %s", c.rank, got, j.Layout.Nodes[j.Node], c.position, c.name)
		}
	}
}
