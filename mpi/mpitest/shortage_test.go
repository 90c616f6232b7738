package mpitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// A rank whose host has no descriptor left to connect to a peer is lost to the others, who are told why. The peer is not.
func TestRankWithoutDescriptors(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			Processes(t, 3, transport, "TestRankShortOfDescriptors", "")
		})
	}
}

// TestRankShortOfDescriptors is a rank of TestRankWithoutDescriptors: 1 is the one.
func TestRankShortOfDescriptors(t *testing.T) {
	transport, _, ok := strings.Cut(os.Getenv(roleVariable), " ")
	if !ok {
		t.Skip("a rank of the other tests")
	}
	ctx, cancel := context.WithTimeout(context.Background(), processTimeout)
	defer cancel()
	w, err := mpi.Init(ctx, &mpi.Config{Transport: transport, PeerTimeout: peerTimeout / 4})
	if err == nil {
		err = shortOfDescriptors(ctx, w.Comm())
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

func shortOfDescriptors(ctx context.Context, c *mpi.Comm) error {
	const short, peer, tag = 1, 2, 7
	if c.Rank() == short {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{}); err != nil {
			return err
		}
		return lostForWant(mpi.Send(ctx, c, []byte{1}, peer, tag), "send to rank 2 ")
	}
	_, err := mpi.Recv(ctx, c, make([]byte, 1), short, tag)
	if err := lostForWant(err, fmt.Sprintf("peer lost: it cannot reach rank 2 on %s: ", c.World().Host(peer))); err != nil {
		return err
	}
	return sync2(ctx, c, peer-c.Rank(), tag)
}

// lostForWant compares the error of an operation that found a rank lost for want of a descriptor.
func lostForWant(err error, want string) error {
	if !errors.Is(err, mpi.ErrPeerLost) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), unix.EMFILE.Error()) {
		return fmt.Errorf("%w, want %q, and %q", err, want, unix.EMFILE.Error())
	}
	return nil
}
