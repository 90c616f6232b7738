package mpi

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// These tests start real processes: this test binary again, running TestChoosingRank
// alone, which opens a world on a host whose devices are below the directory of rootVariable, says by
// what the others are reached and parts:
//
//	joined RANK TRANSPORT
//	failed ERROR
//	parted RANK ERROR

const (
	rootVariable       = "FISTERRA_TEST_HOST"
	transportVariable  = "FISTERRA_TEST_TRANSPORT"
	libraryVariable    = "FISTERRA_TEST_LIBRARY"
	infiniBandVariable = "FISTERRA_TEST_INFINIBAND"
	deviceVariable     = "FISTERRA_TEST_DEVICE" // a file that the rank has open
	secretDirVariable  = "FISTERRA_TEST_SECRETS"
)

func TestChoosingRank(t *testing.T) {
	root, ok := os.LookupEnv(rootVariable)
	if !ok {
		t.Skip("a rank of the other tests")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if file, ok := os.LookupEnv(deviceVariable); ok { // stands for a library that drives the device
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	w, err := initOn(ctx, &Config{
		InfiniBand: os.Getenv(infiniBandVariable),
		Transport:  os.Getenv(transportVariable), MPILibrary: os.Getenv(libraryVariable), SecretDir: os.Getenv(secretDirVariable), StartTimeout: 2 * time.Minute,
		PeerTimeout: time.Minute, // no rank is lost here
		Log:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}, &ib.Host{Root: root})
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	name, _ := w.Comm().Transport((w.Rank() + 1) % w.Size())
	fmt.Println("joined", w.Rank(), name)
	fmt.Println("parted", w.Rank(), w.Close(ctx))
	os.Exit(0)
}

// rdmaHost is the root of a host with one RDMA device that this user may use.
func rdmaHost(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"sys/class/infiniband/mlx5_0/ports/1/state":      "4: ACTIVE\n",
		"sys/class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp\n",
		"sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
		"sys/class/infiniband_verbs/uverbs0/ibdev":       "mlx5_0\n",
		"sys/class/net/lo/type":                          "772\n",
		"dev/infiniband/uverbs0":                         "",
	} {
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := (&ib.Host{Root: root}).Survey().Err(); err != nil {
		t.Fatal(err)
	}
	return root
}

// choosing starts a task of a one-node step that chooses.
func choosing(t *testing.T, rank, size int, job, root string, env ...string) *proc {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChoosingRank$")
	return start(t, rank, cmd, append(append(slurmEnv(rank, size, job), rootVariable+"="+root, "SLURM_CONF=/nonexistent"), env...))
}

// logs waits until the rank has logged text.
func (p *proc) logs(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.errs.Await(ctx, func(logged string) bool { return strings.Contains(logged, text) }); err != nil {
		t.Errorf("rank %d did not log %q: %v", p.rank, text, err)
	}
}

// stepID is the id of a job that no other test's ranks are of.
func stepID(t *testing.T) string {
	t.Helper()
	id := fmt.Sprint(10000 + (os.Getpid()*7+int(time.Now().UnixMilli()))%50000)
	t.Log("job", id)
	return id
}

// mpichPart skips where MPICH's library is not there.
func mpichPart(t *testing.T) {
	t.Helper()
	why := ""
	if _, err := clib.Open("libmpich.so.12"); err != nil {
		why = err.Error()
	}
	need.Part(t, "mpich", why)
}

// MPICH without PMIx makes each rank of srun --mpi=pmix a world of one. Left to
// themselves, the ranks go on over their own transports, and say so.
func TestLibraryThatDoesNotKnowTheStep(t *testing.T) {
	mpichPart(t)
	root, secrets, id := rdmaHost(t), t.TempDir(), stepID(t)
	procs := make([]*proc, 2)
	for rank := range procs {
		procs[rank] = choosing(t, rank, len(procs), id, root, secretDirVariable+"="+secrets, libraryVariable+"=libmpich.so.12",
			fmt.Sprintf("PMIX_RANK=%d", rank), "PMIX_NAMESPACE=slurm.pmix."+id+".0")
	}
	for rank, p := range procs {
		p.await(t, fmt.Sprintf("joined %d shm", rank), patience)
		p.await(t, fmt.Sprintf("parted %d <nil>", rank), patience)
		p.logs(t, "does not find the ranks of this step")
		if warned := strings.Contains(p.errs.String(), "level=WARN msg=transport"); warned != (rank == 0) {
			t.Errorf("rank %d: warned: %v", rank, warned)
		}
	}
}

// asPMI2 is what srun --mpi=pmi2 adds to a task's environment, without its key-value space: ranks
// must agree without it.
func asPMI2(rank, size int) []string {
	return []string{fmt.Sprintf("PMI_RANK=%d", rank), fmt.Sprintf("PMI_SIZE=%d", size), "SLURM_MPI_TYPE=pmi2"}
}

// Ranks on hosts that differ take what all of them have, and say who lacks what.
func TestRanksOfAStepAgreeOnTheTransport(t *testing.T) {
	mpichPart(t)
	bare := t.TempDir()
	for lacking := range 3 {
		secrets, id := t.TempDir(), stepID(t)
		procs := make([]*proc, 3)
		for rank := range procs {
			root := rdmaHost(t)
			if rank == lacking {
				root = bare
			}
			procs[rank] = choosing(t, rank, len(procs), id, root, append(asPMI2(rank, len(procs)), secretDirVariable+"="+secrets, libraryVariable+"=libmpich.so.12")...)
		}
		for rank, p := range procs {
			p.await(t, fmt.Sprintf("joined %d shm", rank), patience)
			p.await(t, fmt.Sprintf("parted %d <nil>", rank), patience)
			p.logs(t, fmt.Sprintf("not all ranks can use RDMA: rank %d on n0 has no usable RDMA device", lacking))
		}
		if left, err := os.ReadDir(secrets); err != nil || len(left) > 0 {
			t.Errorf("key files left: %v %v", left, err)
		}
	}
}

// Where all ranks can, they use the library, whose process manager the agreement has left alone.
func TestMPIRanksOfAStepAgree(t *testing.T) {
	mpichPart(t)
	launcher := need.Program(t, "mpich", "mpiexec.mpich")
	root, secrets, id := rdmaHost(t), t.TempDir(), stepID(t)
	const task = `export SLURM_PROCID=$PMI_RANK SLURM_LOCALID=$PMI_RANK; exec "$0" -test.run='^TestChoosingRank$'`
	env := append(slurmEnv(0, 2, id), "SLURM_MPI_TYPE=pmi2", "SLURM_CONF=/nonexistent", rootVariable+"="+root, secretDirVariable+"="+secrets)
	p := start(t, 0, exec.Command(launcher, "-n", "2", "sh", "-c", task, os.Args[0]), env)
	for rank := range 2 {
		p.await(t, fmt.Sprintf("joined %d mpi", rank), patience)
		p.await(t, fmt.Sprintf("parted %d <nil>", rank), patience)
	}
	p.logs(t, "launcher=pmi2")
}

// A library that is to do RDMA and has no device open is refused where InfiniBand is on, and named where it was chosen for
// the device; on one host its ranks need none.
func TestMPILibraryLeavesTheDevice(t *testing.T) {
	mpichPart(t)
	launcher := need.Program(t, "mpich", "mpiexec.mpich")
	for _, c := range []struct {
		name, infiniBand string
		hosts            int
		driven           string // the rank whose process has the device open; "all"
		refused, warned  bool
	}{
		{"on, none", "on", 2, "", true, false},
		{"on, one of two", "on", 2, "1", true, false},
		{"on, all", "on", 2, "all", false, false},
		{"on, one host", "on", 1, "", false, false},
		{"auto, none", "auto", 2, "", false, true},
		{"auto, all", "auto", 2, "all", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := rdmaHost(t)
			const task = `export SLURM_PROCID=$PMI_RANK
if [ $HOSTS = 2 ]; then export SLURM_NODEID=$PMI_RANK SLURM_LOCALID=0 SLURMD_NODENAME=n$PMI_RANK; else export SLURM_LOCALID=$PMI_RANK; fi
case $DRIVEN in $PMI_RANK|all) export ` + deviceVariable + `=$` + rootVariable + `/dev/infiniband/uverbs0;; esac
exec "$0" -test.run='^TestChoosingRank$'`
			// Without a key each rank chooses by its own host: the names of these lead nowhere.
			env := append(slurmEnv(0, 2, stepID(t)), "SLURM_MPI_TYPE=pmi2", "SLURM_CONF=/nonexistent", rootVariable+"="+root,
				infiniBandVariable+"="+c.infiniBand, fmt.Sprintf("HOSTS=%d", c.hosts), "DRIVEN="+c.driven)
			if c.hosts == 2 {
				env = append(env, "SLURM_STEP_NODELIST=n[0-1]", "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_TASKS_PER_NODE=1(x2)")
			}
			p := start(t, 0, exec.Command(launcher, "-n", "2", "sh", "-c", task, os.Args[0]), env)
			if c.refused {
				idle := "ranks 0,1 (n0)"
				if c.driven == "1" {
					idle = "rank 0 (n0)"
				}
				line := p.await(t, "failed", patience) // its launcher may end the other before it says so
				if !strings.Contains(line, "InfiniBand is asked for, but") || !strings.Contains(line, "has opened no RDMA device on "+idle) {
					t.Error(line)
				}
				return
			}
			for rank := range 2 {
				p.await(t, fmt.Sprintf("joined %d mpi", rank), patience)
				p.await(t, fmt.Sprintf("parted %d <nil>", rank), patience)
			}
			if warned := strings.Contains(p.errs.String(), "has opened no RDMA device on ranks 0,1 (n0)"); warned != c.warned {
				t.Errorf("warned: %v\n%s", warned, p.errs.String())
			}
		})
	}
}

// Ranks that were told different things do not wait for each other.
func TestRanksToldDifferentTransports(t *testing.T) {
	for told := range 2 { // this rank is to use shm; position 0 is rank 1
		secrets, id := t.TempDir(), stepID(t)
		procs := make([]*proc, 2)
		for rank := range procs {
			env := asPMI2(rank, len(procs))
			if rank == told {
				env = []string{transportVariable + "=shm"} // and without a process manager, which it would go to
			}
			procs[rank] = choosing(t, rank, len(procs), id, t.TempDir(), append(env, secretDirVariable+"="+secrets)...)
		}
		for _, p := range procs {
			if line := p.await(t, "failed", patience); !strings.Contains(line, "told different things of the transport") {
				t.Errorf("rank %d was told: rank %d: %s", told, p.rank, line)
			}
		}
	}
}
