package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/ps/train"
)

// fisterra runs the real command to its end.
func fisterra(t *testing.T, args ...string) lab.Result {
	t.Helper()
	return lab.Command(t.Context(), t, lab.Fisterra(t), args...).Run()
}

func resultOf(t *testing.T, r lab.Result) train.Result {
	t.Helper()
	if r.Code != 0 || r.Err != nil {
		t.Fatal(r)
	}
	var x train.Result
	if err := json.Unmarshal([]byte(r.Stdout), &x); err != nil {
		t.Fatalf("%v in %s", err, r)
	}
	return x
}

// TestTrainReachesKnownAccuracy is the promise of the README's first command,
// over five seeds.
func TestTrainReachesKnownAccuracy(t *testing.T) {
	for _, c := range []struct {
		model, mode   string
		median, least float64
	}{
		{"mlp", "sync", 0.965, 0.960},
		{"mlp", "async", 0.965, 0.960},
		{"softmax", "sync", 0.935, 0.90},
		{"softmax", "async", 0.935, 0.90},
	} {
		t.Run(c.model+"/"+c.mode, func(t *testing.T) {
			seeds := 5
			if testing.Short() {
				seeds = 1
			}
			var got []float64
			for seed := range seeds {
				r := resultOf(t, fisterra(t, "train", "--peer-timeout", "1m", "--json", "--model", c.model, "--mode", c.mode, "--seed", strconv.Itoa(seed+1)))
				if r.PS != 1 || r.Workers != 3 || r.Ranks != 4 || len(r.Lost) != 0 || r.Schema != train.Schema || r.Transport != "shm" {
					t.Errorf("seed %d: %+v", seed+1, r)
				}
				got = append(got, r.TestAccuracy)
			}
			slices.Sort(got)
			t.Logf("test accuracy %.4f", got)
			if got[len(got)/2] < c.median || got[0] < c.least {
				t.Errorf("test accuracy %.4f: want a median of %v and at least %v", got, c.median, c.least)
			}
		})
	}
}

// TestSyncRunsRepeat: the seed makes synchronous runs reproducible.
func TestSyncRunsRepeat(t *testing.T) {
	a := resultOf(t, fisterra(t, "train", "--peer-timeout", "1m", "--json", "--epochs", "2", "--seed", "5"))
	b := resultOf(t, fisterra(t, "train", "--peer-timeout", "1m", "--json", "--epochs", "2", "--seed", "5"))
	if a.TrainLoss != b.TrainLoss || a.TestAccuracy != b.TestAccuracy {
		t.Errorf("loss %v and %v, accuracy %v and %v", a.TrainLoss, b.TrainLoss, a.TestAccuracy, b.TestAccuracy)
	}
}

func TestTrainLeavesItsFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	r := fisterra(t, "train", "--peer-timeout", "1m", "--epochs", "2", "--out", dir, "--transport", "tcp", "--ps", "2", "--workers", "2")
	if r.Code != 0 || !strings.Contains(r.Stdout, "test accuracy") || !strings.Contains(r.Stdout, "worker 1") {
		t.Fatal(r)
	}
	for _, name := range []string{"metrics.jsonl", "model.safetensors", "curve.svg", "ps0.log", "ps1.log", "worker0.log", "worker1.log"} {
		if s, err := os.Stat(filepath.Join(dir, name)); err != nil || s.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	log, _ := os.ReadFile(filepath.Join(dir, "ps0.log"))
	if !regexp.MustCompile(`ps 0 received done 1 of 2 from rank [23] \(worker [01]\)`).Match(log) {
		t.Errorf("no line per done in\n%s", log)
	}
}

// startLong starts a run that will not end by itself and returns the process
// ids of its ranks by the name of their log.
func startLong(t *testing.T, args ...string) (cmd *lab.Cmd, out, errs *strings.Builder, pids map[string]int) {
	t.Helper()
	out, errs = &strings.Builder{}, &strings.Builder{}
	cmd, pids = startRun(t, out, errs, []string{"ps0", "worker0", "worker1", "worker2"}, args...)
	return cmd, out, errs, pids
}

// startRun starts a run whose ranks have these names and returns when it trains. If args say nothing else, no rank that a busy
// machine forgets for a while is taken for a lost one.
func startRun(t *testing.T, out, errs io.Writer, names []string, args ...string) (cmd *lab.Cmd, pids map[string]int) {
	t.Helper()
	dir := t.TempDir()
	cmd = lab.Command(within(t, 10*time.Minute), t, lab.Fisterra(t), append([]string{"train", "--out", dir, "--peer-timeout", "1m"}, args...)...)
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := regexp.MustCompile(`msg=started .*pid=(\d+)`)
	pids = map[string]int{}
	eventually(t, longWait, "training begins", dir, func() bool {
		for _, n := range names {
			log, err := os.ReadFile(filepath.Join(dir, n+".log"))
			if m := pid.FindSubmatch(log); err == nil && m != nil {
				pids[n], _ = strconv.Atoi(string(m[1]))
			}
		}
		// A first metric shows that training is under way.
		metrics, err := os.ReadFile(filepath.Join(dir, "metrics.jsonl"))
		return len(pids) == len(names) && err == nil && len(metrics) > 0
	}, func() string { return fmt.Sprint(pids) })
	return cmd, pids
}

// awaitExit waits for the end of a process, which need be no child.
func awaitExit(t *testing.T, pid int, limit time.Duration) {
	t.Helper()
	if err := lab.AwaitEnd(pid, limit); err != nil {
		t.Fatal(err)
	}
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	return -1
}

// TestWorkerKilledInSyncMode: where the reference system hung for ever.
func TestWorkerKilledInSyncMode(t *testing.T) {
	cmd, _, errs, pids := startLong(t, "--epochs", "5000")
	if err := syscall.Kill(pids["worker2"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if strings.Contains(errs.String(), "ending them") {
		t.Errorf("the others did not end by themselves:\n%s", errs)
	}
	if exitCode(err) <= 0 {
		t.Errorf("exit code %d", exitCode(err))
	}
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	if !regexp.MustCompile(`rank 3 (\(|on )` + regexp.QuoteMeta(host)).MatchString(errs.String()) {
		t.Errorf("no message names rank 3 and its host:\n%s", errs)
	}
	for name, pid := range pids {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("%s (process %d) is left", name, pid)
		}
	}
}

func TestWorkerKilledInAsyncMode(t *testing.T) {
	t.Parallel()
	cmd, out, errs, pids := startLong(t, "--mode", "async", "--json", "--epochs", "20") // a second by itself: it is not over when the worker dies
	if err := syscall.Kill(pids["worker1"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(cmd.Wait()); code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, out, errs)
	}
	var r train.Result
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if !slices.Equal(r.Lost, []int{2}) {
		t.Errorf("lost %v, want [2]", r.Lost)
	}
}

// TestServerStartsLate starts the workers of a step before the server, which
// is position 0 and the one they have to find.
func TestServerStartsLate(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	short, _, _ := strings.Cut(host, ".")
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	secrets := t.TempDir()
	results := make(chan lab.Result, 4)
	start := func(rank int) {
		cmd := lab.Command(ctx, t, lab.Fisterra(t), "train", "--epochs", "1", "--json", "--secret-dir", secrets)
		cmd.Env = append(os.Environ(),
			"SLURM_JOB_ID="+strconv.Itoa(os.Getpid()), "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST="+short, "SLURM_STEP_NUM_NODES=1",
			"SLURM_STEP_NUM_TASKS=4", "SLURM_NTASKS=4", "SLURM_STEP_TASKS_PER_NODE=4", "SLURM_NODEID=0", "SLURMD_NODENAME="+short,
			"SLURM_PROCID="+strconv.Itoa(rank), "SLURM_LOCALID="+strconv.Itoa(rank), "SLURM_GTIDS=0,1,2,3", "SLURM_CPUS_ON_NODE=4")
		go func() { results <- cmd.Run() }()
	}
	for rank := 1; rank < 4; rank++ {
		start(rank)
	}
	select {
	case r := <-results:
		t.Fatalf("a worker did not wait for the server: %s", r)
	case <-time.After(2 * time.Second): // nothing is to happen
	}
	start(0)
	for range 4 {
		if r := <-results; r.Code != 0 {
			t.Error(r)
		}
	}
}

func TestRunPassesCodesAndLabels(t *testing.T) {
	r := fisterra(t, "run", "-n", "3", "-l", "--", "sh", "-c", "echo rank $FISTERRA_RANK of $FISTERRA_SIZE; [ $FISTERRA_RANK != 2 ] || exit 5; exec sleep 100")
	if r.Code != 5 || !strings.Contains(r.Stdout, "2: rank 2 of 3\n") {
		t.Error(r)
	}
	r = fisterra(t, "run", "-n", "2", "--timeout", "300ms", "--", "sleep", "100")
	if r.Code != exitTimeout {
		t.Error(r)
	}
}

func TestInfo(t *testing.T) {
	if r := fisterra(t, "info"); r.Code != 0 || !strings.Contains(r.Stdout, "singleton") || !strings.Contains(r.Stdout, "InfiniBand") {
		t.Error(r)
	}
	r := fisterra(t, "run", "-n", "3", "--", lab.Fisterra(t), "info", "--roles", "ps,worker,worker")
	if r.Code != 0 || !strings.Contains(r.Stdout, "worker 1") || !strings.Contains(r.Stdout, "shm") || strings.Contains(r.Stdout, "limit:") {
		t.Error(r)
	}
}

// What the MPI library cannot do is said.
func TestMPIInfo(t *testing.T) {
	lab.OpenMPI.Needed(t)
	r := lab.OpenMPI.Command(t.Context(), t, 2, lab.Fisterra(t), "info", "--transport", "mpi").Run()
	for _, want := range []string{"limit: a lost rank is not named", "limit: a send cannot be taken back", "limit: there is no one-sided communication", "limit: a waiting rank wakes up"} {
		if r.Code != 0 || !strings.Contains(r.Stdout, want) {
			t.Errorf("no %q: %v", want, r)
		}
	}
}

// TestOneRankWorks: a rank that a launcher has started alone is a worker for every command,
// and a server only where that was asked for.
func TestOneRankWorks(t *testing.T) {
	one := func(args ...string) lab.Result {
		t.Helper()
		return fisterra(t, append([]string{"run", "-n", "1", "--", lab.Fisterra(t)}, args...)...)
	}
	if r := one("info"); r.Code != 0 || !strings.Contains(r.Stdout, "worker 0") {
		t.Error(r)
	}
	if r := resultOf(t, one("train", "--json", "--epochs", "1")); r.PS != 0 || r.Workers != 1 {
		t.Errorf("%+v", r)
	}
	for _, command := range []string{"info", "train"} {
		if r := one(command, "--ps", "1"); r.Code != exitUsage || !strings.Contains(r.Stderr, "--ps 1 on 1 ranks leaves 0 workers") {
			t.Errorf("%s: %v", command, r)
		}
	}
	step := map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "c7101", "SLURM_STEP_NUM_TASKS": "1",
		"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
	if out, errs, code := command(step, "spec"); code != 0 || !strings.Contains(out, `"ps":[],"worker":["c7101:`) {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

// ownTransport is how a rank says that Fisterra itself has chosen its transport.
const ownTransport = "transport chosen: auto (shared memory on one host, else TCP"

// TestChoiceIsShown: what a rank was given to talk by, and why, is in the ordinary output, and info
// says which MPI library there is for its launcher, also where that is not used.
func TestChoiceIsShown(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"train --epochs 1", ownTransport},
		{"train --epochs 1 --json --transport tcp", "transport chosen: tcp (asked for)"},
		{"bench latency --sizes 8 -i 5", "# " + ownTransport},
		{"run -n 2 -- " + lab.Fisterra(t) + " info", ownTransport},
		{"run -n 2 -- " + lab.Fisterra(t) + " info --mpi-library /nowhere/libmpi.so",
			"MPI library none: native: no MPI library (asked for; another can be named, by --mpi-library); tried: library not loaded: /nowhere/libmpi.so: "},
	} {
		if r := fisterra(t, words(c.args)...); r.Code != 0 || strings.Count(r.Stdout+r.Stderr, c.want) != 1 {
			t.Errorf("%s: want %q: %v", c.args, c.want, r)
		}
	}
}

// TestMPIChoiceIsShown is the same under MPICH's launcher.
func TestMPIChoiceIsShown(t *testing.T) {
	lab.MPICH.Needed(t)
	for flag, want := range map[string]string{"auto": ownTransport, "mpi": "transport chosen: mpi (asked for)"} {
		r := lab.MPICH.Command(t.Context(), t, 2, lab.Fisterra(t), words("info --transport", flag)...).Run()
		if r.Code != 0 || !strings.Contains(r.Stdout, want) || !strings.Contains(r.Stdout, "MPI library mpich ") || !strings.Contains(r.Stdout, "launcher hydra (PMI_FD)") {
			t.Errorf("%s: want %q: %v", flag, want, r)
		}
	}
	// What such a choice means for a run that would go on without a lost worker is a warning, of one rank.
	for mode, want := range map[string]int{"async": 1, "sync": 0} {
		r := lab.Command(t.Context(), t, "mpiexec.mpich", words("-n 2", lab.Fisterra(t), "train --transport mpi --epochs 1 --mode", mode)...).Run()
		if r.Code != 0 || strings.Count(r.Stderr, `level=WARN msg=transport choice=mpi because="asked for; one lost rank ends the job`) != want {
			t.Errorf("%s: want %d warnings: %v", mode, want, r)
		}
	}
}

// TestExamplePi builds and runs the README's program.
func TestExamplePi(t *testing.T) {
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	pi := filepath.Join(t.TempDir(), "pi")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", pi, "./examples/pi")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := fisterra(t, "run", "-n", "3", "--", pi)
	for rank := range 3 {
		want := fmt.Sprintf("rank %d of 3: token %d came home, pi is 3.14159265", rank, rank)
		if r.Code != 0 || !strings.Contains(r.Stdout, want) {
			t.Errorf("no %q: %s", want, r)
		}
	}
}
