package mpitest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/launch"
)

// lossVariable has a process of this test binary be a rank of a check of losses: "TRANSPORT CHECK".
const lossVariable = "FISTERRA_TEST_LOSS"

const lossTimeout = 30 * time.Second

// TestLossesOfProcesses runs the checks of losses among processes, whose last rank is killed
// by SIGKILL: what the survivors see comes from the kernel.
func TestLossesOfProcesses(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, check := range LossChecks() {
			t.Run(transport+"/"+check.Name, func(t *testing.T) {
				var out bytes.Buffer
				o, err := launch.Run(t.Context(), launch.Config{
					Ranks: check.Ranks, Policy: launch.Continue, Timeout: 2 * lossTimeout,
					Program: os.Args[0], Args: []string{"-test.run=^TestLossRank$"},
					Env:    []string{lossVariable + "=" + transport + " " + check.Name},
					Stdout: &out, Stderr: &out, Label: launch.ByRank,
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range o.Exits {
					dies := x.Rank == check.Ranks-1 || x.Rank == 0 && check.Name == "ShrinkTwice"
					if dies && x.Signal != syscall.SIGKILL || !dies && x.Code != 0 {
						t.Errorf("rank %d: %v", x.Rank, x)
					}
				}
				if t.Failed() {
					t.Log(out.String())
				}
			})
		}
	}
}

// TestLossRank is a rank of TestLossesOfProcesses.
func TestLossRank(t *testing.T) {
	transport, name, ok := strings.Cut(os.Getenv(lossVariable), " ")
	if !ok {
		t.Skip("a rank of the other tests")
	}
	if err := beLossRank(transport, name); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func beLossRank(transport, name string) error {
	checks := LossChecks()
	i := slices.IndexFunc(checks, func(c LossCheck) bool { return c.Name == name })
	ctx, cancel := context.WithTimeout(context.Background(), lossTimeout)
	defer cancel()
	w, err := mpi.Init(ctx, &mpi.Config{Transport: transport})
	if err != nil {
		return err
	}
	if err := assemble(ctx, w.Comm()); err != nil {
		return err
	}
	err = checks[i].Run(ctx, w.Comm(), func() {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // not a step further
	})
	if err != nil {
		return err
	}
	return w.Close(ctx)
}

// assemble has all ranks connected before the last returns: a rank that dies while others still
// look for it is another story.
func assemble(ctx context.Context, c *mpi.Comm) error {
	const tagReady = 901
	if err := greetAll(ctx, c); err != nil {
		return err
	}
	if !last(c) {
		return mpi.Send(ctx, c, []byte{1}, c.Size()-1, tagReady)
	}
	for src := range c.Size() - 1 {
		if _, err := mpi.Recv(ctx, c, make([]byte, 1), src, tagReady); err != nil {
			return err
		}
	}
	return nil
}
