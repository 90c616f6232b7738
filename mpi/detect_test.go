package mpi

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// captured is the environment of a real task: see slurm/testdata.
func captured(t *testing.T, name string) func(string) (string, bool) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "slurm", "testdata", "slurm-env", name+".env"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	env := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), "="); ok {
			env[key] = value
		}
	}
	return lookupIn(env)
}

func lookupIn(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func TestDetectCaptured(t *testing.T) {
	for _, c := range []struct {
		env, kind   string
		rank, size  int
		node, local int
		job         string
	}{
		{"block-4n2t.t3", BySlurm, 3, 8, 1, 1, ""},
		{"cyclic-4n2t.t3", BySlurm, 3, 8, 3, 0, ""},
		{"arbitrary-5t.t0", BySlurm, 0, 5, 1, 0, "18.0"},
		{"requeue.1.t0", BySlurm, 0, 0, 0, 0, ""},
		{"hetbatch.both.t2", BySlurm, 2, 4, 1, 0, "39.1"},
		{"pmi2-4n2t.t3", ByPMI2, 3, 8, 1, 1, "19.0"},
		{"pmix-4n2t.t3", ByPMIx, 3, 8, 1, 1, "20.0"},
		{"mpirun-local-4t.r2", ByOpenMPI, 2, 4, -1, -1, "1159856129"},
		{"mpirun-slurm-4n2t.r5", ByOpenMPI, 5, 8, -1, -1, "1157627905"},
		{"hydra-local-4t.r3", ByMPICH, 3, 4, -1, -1, ""},
		{"hydra-slurm-4n2t.r5", ByMPICH, 5, 8, -1, -1, ""},
		{"hydra-local-pmiport-4t.rid2", ByMPICH, 0, -1, -1, -1, ""},
	} {
		if _, err := os.Stat(filepath.Join("..", "slurm", "testdata", "slurm-env", c.env+".env")); err != nil {
			if strings.HasPrefix(c.env, "requeue") {
				continue
			}
			t.Fatal(err)
		}
		l, err := detect(captured(t, c.env))
		if err != nil {
			t.Errorf("%s: %v", c.env, err)
			continue
		}
		if l.kind != c.kind || l.rank != c.rank || l.size != c.size && c.size != 0 || l.node != c.node || l.local != c.local || c.job != "" && l.job != c.job {
			t.Errorf("%s: %s rank %d of %d, node %d local %d, job %q", c.env, l.kind, l.rank, l.size, l.node, l.local, l.job)
		}
		if l.reason == "" {
			t.Errorf("%s: no reason", c.env)
		}
	}
}

// What the system's MPI library is told of its launcher: the same that the ranks go by.
func TestLauncherOfTheLibrary(t *testing.T) {
	const step = " SLURM_JOB_ID=5 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NODEID=0 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n0 SLURM_STEP_TASKS_PER_NODE=2"
	for _, c := range []struct {
		env        string
		kind       native.LauncherKind
		rank, size int
	}{
		{"", native.NoLauncher, 0, 1},
		{"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 PMIX_RANK=3" + step, native.ByOpenMPI, 3, 4},
		{"PMI_RANK=3 PMI_SIZE=4 PMI_FD=7 MPI_LOCALRANKID=1" + step, native.ByHydra, 3, 4},
		{"PMI_RANK=3 PMI_SIZE=4 PMI_FD=7 MPI_LOCALRANKID=1 SLURM_MPI_TYPE=pmi2" + step, native.ByHydra, 3, 4},
		{"PMI_RANK=1 PMI_SIZE=2 PMI_FD=7 MPI_LOCALRANKID=0 SLURM_MPI_TYPE=pmi2" + step, native.BySlurmByPMI2, 1, 2}, // srun in a rank of Hydra's
		{"PMI_PORT=host:1 PMI_ID=1", native.ByHydra, 0, -1},
		{"PMI_RANK=1 PMI_SIZE=2 PMI_FD=13" + step, native.BySlurmByPMI2, 1, 2},
		{"PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.1.0" + step, native.BySlurmByPMIx, 1, 2},
		{"PMIX_RANK=2 PMIX_NAMESPACE=prterun", native.ByPMIx, 2, -1},
		{"PMIX_RANK=2 PMIX_NAMESPACE=prterun-n0-77@1" + step, native.ByPMIx, 2, -1},
		{"PALS_RANKID=9 PMI_RANK=9 PMI_SIZE=16", native.ByPALS, 9, 16},
		{step, native.BySlurm, 1, 2},
	} {
		env := map[string]string{}
		for kv := range strings.FieldsSeq(c.env) {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		l, err := detect(lookupIn(env))
		if err != nil || l.native.Kind != c.kind || l.native.Why == "" || l.rank != c.rank || l.size != c.size {
			t.Errorf("%q: %+v, %v, want %q, rank %d of %d", c.env, l, err, c.kind, c.rank, c.size)
		}
	}
	// As captured from a rank of each launcher, in a Slurm job and outside.
	for name, want := range map[string]native.LauncherKind{
		"hydra-slurm-4n2t.r1": native.ByHydra, "hydra-local-4t.r1": native.ByHydra, "hydra-local-pmiport-4t.rid1": native.ByHydra,
		"mpirun-slurm-4n2t.r1": native.ByOpenMPI, "mpirun-local-4t.r1": native.ByOpenMPI,
		"pmi2-4n2t.t1": native.BySlurmByPMI2, "pmix-4n2t.t1": native.BySlurmByPMIx, "block-4n2t.t1": native.BySlurm,
	} {
		if l, err := detect(captured(t, name)); err != nil || l.native.Kind != want {
			t.Errorf("%s: %+v, %v, want %q", name, l, err, want)
		}
	}
}

// Every captured task of a step is detected as one, and every batch shell is refused.
func TestDetectEveryCapture(t *testing.T) {
	files, err := filepath.Glob("../slurm/testdata/slurm-env/*.env")
	if err != nil || len(files) < 100 {
		t.Fatalf("%d environments, %v", len(files), err)
	}
	steps := map[string]int{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".env")
		l, err := detect(captured(t, name))
		if strings.Contains(name, "batch.env") || strings.HasSuffix(name, ".batch") {
			if !errors.Is(err, ErrLauncher) || !strings.Contains(err.Error(), "srun") {
				t.Errorf("%s: a batch shell gave %+v, %v", name, l, err)
			}
			continue
		}
		if err != nil {
			if !strings.Contains(err.Error(), "srun") { // shells of salloc
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		steps[l.kind]++
	}
	for _, kind := range []string{BySlurm, ByPMI2, ByPMIx, ByOpenMPI, ByMPICH} {
		if steps[kind] == 0 {
			t.Errorf("no environment of %s: %v", kind, steps)
		}
	}
}

func TestDetectOrder(t *testing.T) {
	fisterra := map[string]string{
		wire.EnvRank: "1", wire.EnvSize: "4", wire.EnvJob: "j", wire.EnvRoot: "127.0.0.1:5", wire.EnvSecretFD: "3", wire.EnvRestart: "2",
	}
	with := func(base map[string]string, more ...string) map[string]string {
		env := map[string]string{}
		for k, v := range base {
			env[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			if env[more[i]] = more[i+1]; more[i+1] == "" {
				delete(env, more[i])
			}
		}
		return env
	}
	step := map[string]string{
		"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0",
		"SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "n0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1",
	}
	for _, c := range []struct {
		name string
		env  map[string]string
		kind string
		err  string
	}{
		{"nothing", nil, BySingleton, ""},
		{"own launcher", fisterra, ByFisterra, ""},
		{"own launcher in a step under mpirun", with(fisterra, "SLURM_STEP_ID", "0", "OMPI_COMM_WORLD_SIZE", "9"), ByFisterra, ""},
		{"mpirun in a step", with(step, "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_RANK", "1"), ByOpenMPI, ""},
		{"mpiexec in a step, where pmi2 is the default", with(step, "PMI_FD", "7", "PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALRANKID", "1", "SLURM_MPI_TYPE", "pmi2"), ByMPICH, ""},
		{"step", step, BySlurm, ""},
		{"rank out of range", with(fisterra, wire.EnvRank, "4"), "", "rank 4, but the job has 4 ranks"},
		{"rank no number", with(fisterra, wire.EnvRank, "one"), "", `FISTERRA_RANK is "one"`},
		{"no secret", with(fisterra, wire.EnvSecretFD, ""), "", "FISTERRA_SECRET_FD is not set"},
		{"no size", with(fisterra, wire.EnvSize, ""), "", "FISTERRA_SIZE is not set"},
		{"batch shell", map[string]string{"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, "", "srun"},
		{"half a step with pmi2", with(step, "SLURM_NODEID", "", "PMI_FD", "7", "PMI_RANK", "0", "PMI_SIZE", "1"), "", "SLURM_NODEID"},
		{"half a step with pmix", with(step, "SLURM_NODEID", "", "PMIX_RANK", "0"), "", "SLURM_NODEID"},
		{"pmi2 in a step that contradicts itself", with(step, "PMI_FD", "7", "PMI_RANK", "0", "PMI_SIZE", "1", "SLURM_STEP_NUM_TASKS", "3"), "", "SLURM_STEP_TASKS_PER_NODE"},
		{"pmix without a step", map[string]string{"PMIX_RANK": "0", "PMIX_NAMESPACE": "prterun", "SLURM_JOB_ID": "5"}, ByPMIx, ""},
		{"half a step", with(step, "SLURM_NODEID", ""), "", "SLURM_NODEID"},
	} {
		l, err := detect(lookupIn(c.env))
		switch {
		case c.err != "":
			if !errors.Is(err, ErrLauncher) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.name, err, c.err)
			}
		case err != nil || l.kind != c.kind:
			t.Errorf("%s: %+v, %v", c.name, l, err)
		}
	}
	l, _ := detect(lookupIn(fisterra))
	if l.identity() != "j.2" || l.restart != 2 || l.rank != 1 || l.size != 4 {
		t.Errorf("%+v", l)
	}
}

func TestRendezvousPorts(t *testing.T) {
	l, err := detect(captured(t, "arbitrary-5t.t0"))
	if err != nil {
		t.Fatal(err)
	}
	ports := l.rendezvousPorts()
	if len(ports) != rendezvousPorts || !slices.Equal(ports[:3], []int{18076, 18077, 18078}) {
		t.Errorf("reserved ports come first: %v", ports)
	}
	other, _ := detect(captured(t, "arbitrary-5t.t3"))
	if !slices.Equal(ports, other.rendezvousPorts()) {
		t.Error("two tasks of a step compute different ports")
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if p < 1024 || p > 32767 || seen[p] {
			t.Errorf("port %d of %v", p, ports)
		}
		seen[p] = true
	}
}

// A launcher that cannot be joined is refused, not taken for N worlds of one.
func TestOtherLauncherRefused(t *testing.T) {
	for _, name := range []string{"mpirun-local-4t.r2", "hydra-local-4t.r3"} {
		env := captured(t, name)
		cfg := &Config{Lookup: func(name string) (string, bool) {
			if name == "PMI_FD" {
				return "1000", true // not open here
			}
			return env(name)
		}}
		l, err := detect(env)
		if err != nil {
			t.Fatal(err)
		}
		m, err := meet(t.Context(), cfg, l)
		if err == nil {
			m.close()
			t.Fatalf("%s: a rank met without its process manager", name)
		}
		if !errors.Is(err, ErrLauncher) {
			t.Errorf("%s: %v", name, err)
		}
		t.Log(err)
	}
}

// Ranks of PALS know rank and size, but have no process manager that Fisterra could ask.
// TestStepWithoutPMI: Slurm's cray_shasta says rank and size as a process manager does, and has no PMI that Fisterra
// speaks. The tasks of a step meet without one.
func TestStepWithoutPMI(t *testing.T) {
	env := map[string]string{"PALS_RANKID": "1", "PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_MPI_TYPE": "cray_shasta", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
		"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "c7101",
		"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_NODELIST": "c7101", "SLURM_NODELIST": "c7101", "SLURM_TASKS_PER_NODE": "2"}
	cfg := &Config{Lookup: lookupIn(env)}
	l, err := detect(cfg.Lookup)
	if err != nil {
		t.Fatal(err)
	}
	if l.kind != ByPMI2 || l.step == nil || l.rank != 1 || l.size != 2 {
		t.Fatalf("kind %v, rank %d of %d, step %v", l.kind, l.rank, l.size, l.step)
	}
	m := &meeting{cfg: cfg, l: l}
	if err := m.askManager(t.Context()); err != nil || m.manager != nil {
		t.Errorf("%v, manager %v", err, m.manager)
	}
}

func TestManagerOutOfReachNamesTheWayOut(t *testing.T) {
	cfg := &Config{Lookup: lookupIn(map[string]string{"PALS_RANKID": "1", "PMI_RANK": "1", "PMI_SIZE": "2"})}
	l, err := detect(cfg.Lookup)
	if err != nil {
		t.Fatal(err)
	}
	m, err := meet(t.Context(), cfg, l)
	if err == nil {
		m.close()
		t.Fatal("a rank met without its process manager")
	}
	for _, want := range []string{"rank 1 of 2", "PMI_RANK", "--transport mpi"} {
		if !errors.Is(err, ErrLauncher) || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}
