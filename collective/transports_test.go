package collective

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// assortment is a selection of everything, for transports other than the
// simulated one: collectives, plans, types, lengths around every protocol switch.
func assortment(ctx context.Context, c *mpi.Comm) error {
	cases := []reduceCase{
		caseOf("sum of float32", Sum, sumOf[float32]), caseOf("concat", concat, concatOne), caseOf("max of int16", Max, maxOf[int16]),
	}
	size := c.Size()
	for i, n := range []int{0, 1, 2, 500, 4 << 10, 70_001} {
		for j, k := range cases {
			if n > 500 && j == 1 {
				continue
			}
			if err := k.run(ctx, c, i, n, (i+j)%size, (i+j)%2 == 0); err != nil {
				return fmt.Errorf("%s, %d elements: %w", k.name, n, err)
			}
		}
		if err := moveAll[int32](ctx, c, i, n, i%size, i%2 == 0); err != nil {
			return fmt.Errorf("%d elements: %w", n, err)
		}
	}
	for _, kind := range plan.Kinds() {
		for _, f := range chosenPlans(kind) {
			f.Library = LibraryNever
			if err := reconfigure(ctx, c, f); err != nil {
				return err
			}
			for _, n := range []int{3, 9000} {
				if err := cases[0].run(ctx, c, n, n, 1%size, false); err != nil {
					return fmt.Errorf("%v, %d elements: %w", f.Force, n, err)
				}
				if err := moveAll[int64](ctx, c, n, n, 1%size, true); err != nil {
					return fmt.Errorf("%v, %d elements: %w", f.Force, n, err)
				}
			}
		}
	}
	return nil
}

// overSharedMemory runs f on n ranks of this process that share memory.
func overSharedMemory(t *testing.T, n int, f func(context.Context, *mpi.Comm) error) {
	t.Helper()
	mpitest.Together(t, mpitest.SharedMemoryWorlds(t, n), f)
}

// overTCP runs f on n ranks of this process with sockets between them.
func overTCP(t *testing.T, n int, f func(context.Context, *mpi.Comm) error) {
	t.Helper()
	mpitest.Together(t, mpitest.TCPWorlds(t, n), f)
}

func TestAssortmentOverSharedMemory(t *testing.T) {
	// Ranks of one process spin for each other: as many as there are processors at least.
	for _, n := range []int{2, 3} {
		overSharedMemory(t, n, assortment)
	}
}

func TestAssortmentOverTCP(t *testing.T) {
	for _, n := range []int{2, 5} {
		overTCP(t, n, assortment)
	}
}

// The tests over the system's MPI libraries start this test binary again.
const (
	libraryVariable = "FISTERRA_TEST_COLLECTIVE_LIBRARY"
	policyVariable  = "FISTERRA_TEST_COLLECTIVE_POLICY"
)

// giveUpTheLibrary has rank 1 give up a collective of the library to which rank 2 does not come: that ends it for
// rank 0, too, and both learn that the library still has their buffers, and when it has given them back.
func giveUpTheLibrary(ctx context.Context, c *mpi.Comm) error {
	if err := Barrier(ctx, c); err != nil {
		return err
	}
	v := []int64{1, 2}
	if c.Rank() == 2 {
		// When rank 0 has been told, both have started it, so that a third start can end it.
		if _, err := mpi.Recv(ctx, c, v[:1], 0, 1); err != nil {
			return err
		}
		n, _ := c.Shadow().Native()
		_, err := n.Allreduce(nil, mpi.Bytes(v), mpi.KindOf[int64](), mpi.ReduceSum).Wait(ctx)
		return err
	}
	own, want := ctx, mpi.ErrCancelled
	if c.Rank() == 1 {
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		own, want = short, context.DeadlineExceeded
	}
	err := Allreduce(own, c, v, v, Sum)
	if err := errors.Join(within(err, want), within(err, mpi.ErrInFlight)); err != nil {
		return err
	}
	if c.Rank() == 0 {
		if err := mpi.Send(ctx, c, v[:1], 2, 1); err != nil {
			return err
		}
	}
	var at *mpi.Error
	if !errors.As(err, &at) {
		return fmt.Errorf("%v does not say when the buffer is free", err)
	}
	select {
	case <-at.Done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the library keeps the buffer: %w", context.Cause(ctx))
	}
}

// TestLibraryRank is a rank of TestAssortmentOverMPI and TestGivingUpOverMPI.
func TestLibraryRank(t *testing.T) {
	policy, ok := os.LookupEnv(policyVariable)
	if !ok {
		t.Skip("a rank of TestAssortmentOverMPI or TestGivingUpOverMPI")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	w, err := mpi.Init(ctx, &mpi.Config{
		Transport: "mpi", MPILibrary: os.Getenv(libraryVariable),
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	c := w.Comm()
	if policy != "never" {
		err = Configure(c, Config{Library: LibraryAlways})
		if _, ok := c.Native(); !ok && err == nil {
			err = fmt.Errorf("the library has no collectives of its own")
		}
	}
	switch {
	case err != nil:
	case policy == "give up":
		err = giveUpTheLibrary(ctx, c)
	default:
		err = assortment(ctx, c)
	}
	if err != nil {
		fmt.Printf("rank %d failed: %v\n", w.Rank(), err)
		w.Abort(3, err.Error())
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	os.Exit(0) // without the testing package's own report, once for each rank
}

// The same over Open MPI and MPICH, with our plans on their messages and with
// their own collectives.
func TestAssortmentOverMPI(t *testing.T) { overMPI(t, "never", "always") }

// A collective of the library's own is given up like any other, except that its buffers are in flight.
func TestGivingUpOverMPI(t *testing.T) { overMPI(t, "give up") }

// overMPI runs TestLibraryRank on three ranks by each policy over Open MPI and MPICH.
func overMPI(t *testing.T, policies ...string) {
	if testing.Short() {
		t.Skip("starts mpirun; not for -short")
	}
	for part, launcher := range map[string][]string{
		"openmpi": {"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"},
		"mpich":   {"mpiexec.mpich"},
	} {
		t.Run(part, func(t *testing.T) {
			if _, err := exec.LookPath(launcher[0]); err != nil {
				need.Part(t, part, err.Error())
			}
			self, err := filepath.Abs(os.Args[0])
			if err != nil {
				t.Fatal(err)
			}
			for _, policy := range policies {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				args := append(launcher[1:len(launcher):len(launcher)], "-n", "3", self, "-test.run=^TestLibraryRank$")
				cmd := exec.CommandContext(ctx, launcher[0], args...)
				cmd.Env = append(os.Environ(), policyVariable+"="+policy)
				cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
				cmd.WaitDelay = 5 * time.Second
				out, err := cmd.CombinedOutput()
				cancel()
				if err != nil {
					t.Errorf("library %s: %v\n%s", policy, err, out)
				}
			}
		})
	}
}
