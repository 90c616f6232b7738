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

// roleVariable has a process of a test binary be a rank, and says over which transport and of what.
const roleVariable = "FISTERRA_TEST_ROLE"

// processTimeout bounds what a rank does.
const processTimeout = 2 * time.Minute

// peerTimeout is the ranks' where none is to be lost by its silence: a rank that the machine forgets for a while is none.
const peerTimeout = time.Minute

// Processes starts ranks as processes of this host, connected by a transport: each runs the named test of
// this binary alone, which calls BeProcess and gets the role there. It fails t unless the ranks in
// dying end by SIGKILL, and the others with exit code 0. What they print is logged then.
func Processes(t *testing.T, ranks int, transport, test, role string, dying ...int) {
	t.Helper()
	var out bytes.Buffer
	o, err := launch.Run(t.Context(), launch.Config{
		Ranks: ranks, Policy: launch.Continue, Timeout: 2 * processTimeout,
		Program: os.Args[0], Args: []string{"-test.run=^" + test + "$"}, Env: []string{roleVariable + "=" + transport + " " + role},
		Stdout: &out, Stderr: &out, Label: launch.ByRank,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range o.Exits {
		if dies := slices.Contains(dying, x.Rank); dies && x.Signal != syscall.SIGKILL || !dies && x.Code != 0 {
			t.Errorf("rank %d: %v", x.Rank, x)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// BeProcess is a rank that Processes has started: it runs f on the world of all of them with the
// role that they were given, and ends the process. In any other process it skips t. The
// last rank comes to f when all ranks are connected: one that dies while others still
// look for it is another story.
func BeProcess(t *testing.T, f func(ctx context.Context, c *mpi.Comm, role string) error) {
	beProcess(t, peerTimeout, f)
}

// beProcess is BeProcess of ranks that a silence of that length loses.
func beProcess(t *testing.T, peerTimeout time.Duration, f func(ctx context.Context, c *mpi.Comm, role string) error) {
	transport, role, ok := strings.Cut(os.Getenv(roleVariable), " ")
	if !ok {
		t.Skip("a rank of the other tests")
	}
	ctx, cancel := context.WithTimeout(context.Background(), processTimeout)
	defer cancel()
	w, err := mpi.Init(ctx, &mpi.Config{Transport: transport, PeerTimeout: peerTimeout})
	if err == nil {
		err = connect(ctx, w.Comm())
	}
	if err == nil {
		err = f(ctx, w.Comm(), role)
	}
	if err == nil {
		err = w.Close(ctx)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Die ends this process as kill -9 does.
func Die() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // not a step further
}

func connect(ctx context.Context, c *mpi.Comm) error {
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
