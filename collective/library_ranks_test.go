package collective

// Ranks over the system's MPI libraries, under their own launchers and under Slurm, and what each of them does.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// The tests over the system's MPI libraries start this test binary again.
const (
	libraryVariable = "FISTERRA_TEST_COLLECTIVE_LIBRARY"
	policyVariable  = "FISTERRA_TEST_COLLECTIVE_POLICY"
)

// stallInTheLibrary has rank 0 wait in the library for the others until it has reported that.
func stallInTheLibrary(ctx context.Context, c *mpi.Comm) error {
	const tag = 1
	log := &lines{more: make(chan struct{}, 1)}
	err := Configure(c, Config{Library: LibraryAlways, StallAfter: askAfter, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		return err
	}
	if c.Rank() != 0 {
		if _, err := mpi.Recv(ctx, c, []byte{0}, 0, tag); err != nil {
			return err
		}
		return Barrier(ctx, c)
	}
	reported := make(chan error, 1)
	go func() {
		select {
		case <-log.more:
		case <-ctx.Done():
		}
		var err error
		for r := 1; r < c.Size() && err == nil; r++ {
			err = mpi.Send(ctx, c, []byte{0}, r, tag)
		}
		reported <- err
	}()
	if err := errors.Join(Barrier(ctx, c), <-reported); err != nil {
		return err
	}
	if want := "barrier #1 on world waits for the system's MPI library since"; !strings.Contains(log.String(), want) {
		return fmt.Errorf("the report does not say %q: %s", want, log)
	}
	return nil
}

// leaveSendsInFlight has rank 0 give up a bcast that sends to each of the others. The buffer is in flight until the last of
// them has it, also when that is not the one that was given up first or last; and calls that are refused
// because of that have no buffers in flight.
func leaveSendsInFlight(ctx context.Context, c *mpi.Comm) error {
	const n, tag = 4 << 20, 1
	err := Configure(c, Config{Library: LibraryNever, Force: map[plan.Kind]string{plan.Bcast: "linear"}})
	if err != nil {
		return err
	}
	if c.Rank() != 0 {
		if _, err := mpi.Recv(ctx, c, []byte{0}, 0, tag); err != nil {
			return err
		}
		if _, err := mpi.Recv(ctx, c.Shadow(), make([]byte, n), 0, firstTag+1); err != nil {
			return err
		}
		return mpi.Send(ctx, c, []byte{0}, 0, tag)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	err = Bcast(short, c, make([]byte, n), 0)
	if err := errors.Join(within(err, context.DeadlineExceeded), within(err, mpi.ErrInFlight)); err != nil {
		return err
	}
	var at *mpi.Error
	if !errors.As(err, &at) || at.Done == nil {
		return fmt.Errorf("%v does not say when the buffer is free", err)
	}
	refused := Barrier(ctx, c)
	if err := within(refused, ErrBroken); err != nil || errors.Is(refused, mpi.ErrInFlight) {
		return fmt.Errorf("afterwards: %w", refused)
	}
	var earlier *mpi.Error
	if errors.As(refused, &earlier) && earlier.Done != nil {
		return fmt.Errorf("%v says when a buffer is free", refused)
	}
	for _, r := range []int{3, 1, 2} {
		select {
		case <-at.Done:
			return fmt.Errorf("the buffer is said to be free, but rank %d has not received it", r)
		case <-time.After(100 * time.Millisecond): // for a wrong one to be closed
		}
		err := mpi.Send(ctx, c, []byte{0}, r, tag)
		if err == nil {
			_, err = mpi.Recv(ctx, c, []byte{0}, r, tag)
		}
		if err != nil {
			return err
		}
	}
	select {
	case <-at.Done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the buffer is never free: %w", context.Cause(ctx))
	}
}

// giveUpTheLibrary has rank 1 give up a collective of the library to which rank 2 does not come, when rank 0 has come:
// that ends it for rank 0, too, and both learn that the library still has their buffers, and when it has given them back.
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
	own, giveUp := context.WithCancel(ctx)
	defer giveUp()
	come := make(chan error, 1)
	want := mpi.ErrCancelled
	if c.Rank() == 1 {
		want = context.Canceled
		go func() {
			_, err := mpi.Recv(ctx, c, make([]byte, 1), 0, 2)
			come <- err
			giveUp()
		}()
	} else {
		go func() {
			lookUntil(ctx, stateOf(c).busy)
			come <- mpi.Send(ctx, c, []byte{1}, 1, 2)
		}()
	}
	err := Allreduce(own, c, v, v, Sum)
	if err := errors.Join(within(err, want), within(err, mpi.ErrInFlight), <-come); err != nil {
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

// sendBehindArena: a long message leaves also while its sender waits in the arena for the rank that is to receive it.
func sendBehindArena(ctx context.Context, c *mpi.Comm) error {
	const n, tag = 2 << 20, 1
	for round := range 5 {
		v := make([]int64, n)
		if c.Rank() == 0 {
			for i := range v {
				v[i] = int64(round*n + i)
			}
			r := mpi.Isend(c, v, 1, tag)
			if err := Barrier(ctx, c); err != nil {
				return err
			}
			if _, err := r.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		if _, err := mpi.Recv(ctx, c, v, 0, tag); err != nil {
			return err
		}
		for i, got := range v {
			if want := int64(round*n + i); got != want {
				return fmt.Errorf("round %d: element %d is %d, want %d", round, i, got, want)
			}
		}
		if err := Barrier(ctx, c); err != nil {
			return err
		}
	}
	if stateOf(c).last[plan.Barrier].way != bySlots {
		return errors.New("the barrier was not in the arena")
	}
	return nil
}

// libraryBesideArena: ranks that have an arena leave to the library what the site's table or the policy gives it, but for
// what CheckAll has them compare.
func libraryBesideArena(ctx context.Context, c *mpi.Comm) error {
	site := &Site{Name: "here", Rules: []Rule{{plan.Allreduce.String(), c.Size(), 1, -1, LibraryPlan, "mpi"}}}
	for _, k := range []struct {
		config Config
		way    way
	}{
		{Config{Force: forceWay(MemoryPlan)}, bySlots},
		{Config{Site: site}, byLibrary},
		{Config{Library: LibraryAlways}, byLibrary},
		{Config{Library: LibraryAlways, CheckAll: true, Force: forceWay(MemoryPlan)}, bySlots},
	} {
		if err := reconfigure(ctx, c, k.config); err != nil {
			return err
		}
		v := slices.Repeat([]int64{int64(c.Rank())}, signedBytes/8+1)
		if err := Allreduce(ctx, c, v, v, Sum); err != nil {
			return err
		}
		if err := equal("sum", v, slices.Repeat([]int64{int64(c.Size() * (c.Size() - 1) / 2)}, len(v))); err != nil {
			return err
		}
		if got := stateOf(c).last[plan.Allreduce].way; got != k.way {
			return fmt.Errorf("an allreduce is done in way %d, want %d", got, k.way)
		}
	}
	return nil
}

// mismatchOverLibrary: ranks whose vectors differ in length all learn of it, from the call or from the next, although not
// every library tells how long a message was that did not fit.
func mismatchOverLibrary(ctx context.Context, c *mpi.Comm) error {
	if err := Configure(c, Config{Library: LibraryNever}); err != nil {
		return err
	}
	v := make([]int32, 4+c.Rank())
	err := Allreduce(ctx, c, v, v, Sum)
	if err == nil {
		err = Barrier(ctx, c)
	}
	return within(err, mpi.ErrMismatch)
}

// callOffPass has rank 0 pass a long vector to rank 1 out of a meeting in the arena, to which rank 1 does not come. Both learn
// of it, although the library does not take the message back: that is in flight until rank 1 receives it.
func callOffPass(ctx context.Context, c *mpi.Comm) error {
	const n, calls, tag = 16 << 20, arenaAfter + 1, 1
	err := Configure(c, Config{Library: LibraryNever, Force: map[plan.Kind]string{plan.Bcast: DirectPlan}})
	for range calls {
		if err == nil {
			err = Barrier(ctx, c)
		}
	}
	if err != nil {
		return err
	}
	if c.Rank() == 1 {
		if err := within(Barrier(ctx, c), mpi.ErrMismatch); err != nil {
			return err
		}
		if _, err := mpi.Recv(ctx, c, []byte{0}, 0, tag); err != nil {
			return err
		}
		_, err := mpi.Recv(ctx, c.Shadow(), make([]byte, n), 0, firstTag+calls+1)
		return err
	}
	err = Bcast(ctx, c, make([]byte, n), 0)
	if err := errors.Join(within(err, mpi.ErrMismatch), within(err, mpi.ErrInFlight), mpi.Send(ctx, c, []byte{0}, 1, tag)); err != nil {
		return err
	}
	var at *mpi.Error
	if !errors.As(err, &at) || at.Done == nil {
		return fmt.Errorf("%v does not say when the buffer is free", err)
	}
	select {
	case <-at.Done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the buffer is never free: %w", context.Cause(ctx))
	}
}

// explainedOverLibrary: what is said to be done is done, where the ranks have settled on no arena, and where calls
// are compared first.
func explainedOverLibrary(ctx context.Context, c *mpi.Comm) error {
	for range arenaAfter + 1 {
		if err := Barrier(ctx, c); err != nil {
			return err
		}
	}
	for _, f := range []Config{{Library: LibraryNever}, {Library: LibraryAlways, CheckAll: true}} {
		if err := reconfigure(ctx, c, f); err != nil {
			return err
		}
		for _, n := range []int{1, signedBytes} {
			v := make([]float32, n)
			if err := Allreduce(ctx, c, v, v, Sum); err != nil {
				return err
			}
			e, did := Explain(plan.Allreduce, 4*n, c), stateOf(c).last[plan.Allreduce].plan.Name
			if e.Plan != did || slices.Contains(Plans(plan.Allreduce, 4*n, c), MemoryPlan) {
				return fmt.Errorf("%+v: an allreduce is done by %s and explained as\n%v", f, did, e)
			}
		}
	}
	return nil
}

// differBesideTheLibrary: what the ranks call is compared also where the library would do it: at once with CheckAll, and else
// when a rank that waits in it has asked.
func differBesideTheLibrary(ctx context.Context, c *mpi.Comm) error {
	const tag = 1
	d, err := c.Dup(ctx)
	if err == nil {
		err = Configure(d, Config{Library: LibraryAlways, CheckAll: true})
	}
	if err != nil {
		return err
	}
	err = Bcast(ctx, d, make([]int32, 4), 1-d.Rank())
	for _, want := range []string{"bcast of 4 int32, root 0", "bcast of 4 int32, root 1"} {
		if !errors.Is(err, mpi.ErrMismatch) || errors.Is(err, mpi.ErrInFlight) || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("compared first: %v, want a mismatch that says %q", err, want)
		}
	}
	v := []int64{1}
	if c.Rank() == 0 {
		err := Allreduce(ctx, c, v, v, Sum)
		if !strings.Contains(fmt.Sprint(err), "rank 1 called allreduce of 1 int64, sum, with arguments that make no sense") {
			return fmt.Errorf("%v does not say what rank 1 called", err)
		}
		return errors.Join(within(err, mpi.ErrMismatch), within(err, mpi.ErrInFlight), mpi.Send(ctx, c, v, 1, tag))
	}
	if err := within(Allreduce(ctx, c, v, nil, Sum), ErrArgument); err != nil {
		return err
	}
	if _, err := mpi.Recv(ctx, c, make([]int64, 1), 0, tag); err != nil {
		return err
	}
	n, _ := c.Shadow().Native()
	_, err = n.Allreduce(nil, mpi.Bytes(v), mpi.KindOf[int64](), mpi.ReduceSum).Wait(ctx) // so that rank 0 can end
	return err
}

// busy: a collective is under way.
func (s *state) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watch.active) > 0
}

// TestLibraryRank is a rank of the tests over the system's MPI libraries.
func TestLibraryRank(t *testing.T) {
	policy, ok := os.LookupEnv(policyVariable)
	if !ok {
		t.Skip("a rank of other tests")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	w, err := mpi.Init(ctx, &mpi.Config{
		Transport: "mpi", MPILibrary: os.Getenv(libraryVariable),
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	c := w.Comm()
	switch policy {
	case "never", "mapped":
	case "across hosts":
		if e := Explain(plan.Allreduce, 64<<10, c); e.Plan != LibraryPlan || e.Why != policy {
			err = fmt.Errorf("an allreduce over %d hosts is done by %s, %s; want %s, %s", e.Hosts, e.Plan, e.Why, LibraryPlan, policy)
		}
	default:
		err = Configure(c, Config{Library: LibraryAlways})
		if _, ok := c.Native(); !ok && err == nil {
			err = fmt.Errorf("the library has no collectives of its own")
		}
	}
	switch {
	case err != nil:
	case policy == "give up":
		err = giveUpTheLibrary(ctx, c)
	case policy == "mapped":
		if err = arenaMapped(ctx, c, keptSlabs+1); err == nil {
			err = sendBehindArena(ctx, c)
		}
		if err == nil {
			err = libraryBesideArena(ctx, c)
		}
	case policy == "explain":
		err = explainedOverLibrary(ctx, c)
	case policy == "call off":
		err = callOffPass(ctx, c)
	case policy == "mismatch":
		err = mismatchOverLibrary(ctx, c)
	case policy == "differ":
		err = differBesideTheLibrary(ctx, c)
	case policy == "stall":
		err = stallInTheLibrary(ctx, c)
	case policy == "in flight":
		err = leaveSendsInFlight(ctx, c)
	case policy == "between parts":
		err = sumsBetweenBarriers(ctx, c)
		if err == nil {
			err = checkedBesideBarrier(ctx, c)
		}
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
func TestMPIAssortment(t *testing.T) { overMPI(t, 3, "never", "always") }

// Ranks of one host that are the library's share memory beside it, as over transports of our own.
func TestMPIArenaMapped(t *testing.T) { overMPI(t, 2, "mapped") }

// A collective of the library's own is given up like any other, except that its buffers are in flight.
func TestMPIGivingUp(t *testing.T) { overMPI(t, 3, "give up") }

// What is explained over the library is what is done.
func TestMPIExplained(t *testing.T) { overMPI(t, 2, "explain") }

// A meeting in the arena is called off also while it gives a message to the library, which does not take it back.
func TestMPICallingOff(t *testing.T) { overMPI(t, 2, "call off") }

// Our plans on the library's messages notice that ranks called different things.
func TestMPIMismatch(t *testing.T) { overMPI(t, 3, "mismatch") }

// So do calls that would be, or are, left to the library.
func TestMPIMismatchInTheLibrary(t *testing.T) {
	t.Parallel() // mostly waits
	overMPI(t, 2, "differ")
}

// A collective of the library's own is in a stall report, too.
func TestMPIStallReport(t *testing.T) {
	t.Parallel() // mostly waits
	overMPI(t, 3, "stall")
}

// The sends of a collective that is given up are in flight until all have been received.
func TestMPISendsInFlight(t *testing.T) {
	t.Parallel() // mostly waits
	overMPI(t, 4, "in flight")
}

// The library gets its collectives in the same order on all ranks, although some calls of two goroutines have parts.
func TestMPINothingComesBetweenParts(t *testing.T) { overMPI(t, 3, "between parts") }

// overMPI runs TestLibraryRank on some ranks by each policy over Open MPI and MPICH.
func overMPI(t *testing.T, ranks int, policies ...string) {
	if testing.Short() {
		t.Skip("starts mpirun; not for -short")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lab.Launchers() {
		t.Run(l.Part, func(t *testing.T) {
			l.Needed(t)
			for _, policy := range policies {
				ctx, cancel := context.WithTimeout(t.Context(), limit+time.Minute)
				cmd := l.Command(ctx, t, ranks, self, "-test.run=^TestLibraryRank$")
				cmd.Env = append(cmd.Env, policyVariable+"="+policy)
				r := cmd.Run()
				cancel()
				if r.Code != 0 || r.Err != nil {
					t.Errorf("library %s: %v", policy, r)
				}
			}
		})
	}
}

// TestClusterLibraryAcrossHosts: where nobody says whose the collectives are, those over two
// nodes are Open MPI's.
func TestClusterLibraryAcrossHosts(t *testing.T) {
	t.Parallel() // mostly waits
	lab.OpenMPI.Needed(t)
	s := lab.Cluster(t, 2, 2)
	binary := s.TestBinary()
	for _, policy := range []string{"across hosts", "always"} {
		r := s.Exec(t.Context(), "srun", "--mpi=pmix", "-N2", "-n4", "--ntasks-per-node=2", "env", policyVariable+"="+policy, binary, "-test.run=^TestLibraryRank$")
		if r.Code != 0 || r.Err != nil {
			t.Errorf("library %s: %v", policy, r)
		}
	}
}
