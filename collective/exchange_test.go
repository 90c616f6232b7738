package collective

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// unequal is an alltoallv of n elements between all ranks, of which rank 0 sends so many to rank 1 and rank 1 expects so
// many from rank 0.
func unequal(ctx context.Context, c *mpi.Comm, f form, n, sends, expects int) error {
	out, in := make([]int, c.Size()), make([]int, c.Size())
	for r := range out {
		out[r], in[r] = n, n
	}
	if c.Rank() == 0 {
		out[1] = sends
	}
	if c.Rank() == 1 {
		in[0] = expects
	}
	sum := func(counts []int) (total int) {
		for _, n := range counts {
			total += n
		}
		return total
	}
	send, recv := make([]int32, sum(out)), make([]int32, sum(in))
	if f == blocking {
		return Alltoallv(ctx, c, send, out, recv, in)
	}
	r := Ialltoallv(c, send, out, recv, in)
	clear(out) // which are the caller's again
	clear(in)
	return r.Wait(ctx)
}

// Counts of which one is zero, so that no message travels or nobody takes it: all learn which they are.
func TestMismatchOfCounts(t *testing.T) {
	t.Parallel() // mostly waits
	const size, long = 3, 100_000
	for _, k := range []struct {
		name           string
		n              int
		sends, expects int
		config         Config
	}{
		{"nothing sent", 2, 0, 4, Config{}},
		{"nothing else sent either", 0, 0, 4, Config{}},
		{"nothing expected of a long message", 2, long, 0, Config{}},
		{"nothing sent, checked", 2, 0, 4, Config{CheckAll: true}},
		{"nothing expected, checked", 2, 4, 0, Config{CheckAll: true}},
		{"both, checked", 0, 5, 4, Config{CheckAll: true}},
	} {
		for _, f := range []form{blocking, nonblocking} {
			t.Run(fmt.Sprintf("%s/%d", k.name, f), func(t *testing.T) {
				for r, err := range onRanks(t, size, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
					if err := Configure(c, k.config); err != nil {
						return err
					}
					err := unequal(ctx, c, f, k.n, k.sends, k.expects)
					if err == nil && !k.config.CheckAll { // nothing that this rank waited for was amiss
						err = Barrier(ctx, c)
					}
					if err := within(err, mpi.ErrMismatch); err != nil {
						return err
					}
					for _, want := range []string{fmt.Sprintf("with %d elements for rank 1", k.sends), fmt.Sprintf("expects %d", k.expects), "rank 0"} {
						if !strings.Contains(err.Error(), want) {
							return fmt.Errorf("%q does not say %q", err, want)
						}
					}
					return nil
				}) {
					if err != nil {
						t.Errorf("rank %d: %v", r, err)
					}
				}
			})
		}
	}
}

// Counts are compared, and their alltoallv is done, while the program does not wait for it.
func TestCountsAreComparedWithoutWaiting(t *testing.T) {
	together(t, 2, func(ctx context.Context, c *mpi.Comm) error {
		if err := Configure(c, Config{CheckAll: true}); err != nil {
			return err
		}
		counts, recv, peer := []int{1, 1}, []int32{0, 0}, 1-c.Rank()
		r := Ialltoallv(c, []int32{1, 2}, counts, recv, counts)
		if c.Rank() == 1 {
			if err := r.Wait(ctx); err != nil {
				return err
			}
		}
		token := []int32{0} // rank 0 does not call for it until rank 1 has ended it
		if err := mpi.Send(ctx, c, token, peer, 1); err != nil {
			return err
		}
		if _, err := mpi.Recv(ctx, c, token, peer, 1); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := r.Wait(ctx); err != nil {
				return err
			}
		}
		return equal("alltoallv", recv, []int32{int32(c.Rank()) + 1, int32(c.Rank()) + 1})
	})
}

// Counts that agree are no mismatch, also where some are zero and a rank is waited for long enough to be asked.
func TestCountsThatAgree(t *testing.T) {
	t.Parallel() // mostly waits
	for _, f := range []Config{{}, {CheckAll: true}} {
		asked := make(chan struct{})
		for r, err := range onRanks(t, 3, mpi.LocalOptions{}, func(ctx context.Context, c *mpi.Comm) error {
			if err := Configure(c, f); err != nil {
				return err
			}
			for _, n := range []int{0, 4} {
				for _, called := range []form{blocking, nonblocking, form(c.Rank() % 2)} { // also of different forms
					if err := unequal(ctx, c, called, 2, n, n); err != nil {
						return err
					}
				}
			}
			if c.Rank() == 0 {
				time.AfterFunc(askAfter+2*slowTick, func() { close(asked) })
				<-asked
			}
			return unequal(ctx, c, blocking, 2, 0, 0)
		}) {
			if err != nil {
				t.Errorf("CheckAll %v: rank %d: %v", f.CheckAll, r, err)
			}
		}
	}
}
