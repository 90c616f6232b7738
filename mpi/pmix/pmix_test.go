package pmix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// programVariable names the rank program that this test binary runs instead of tests.
const programVariable = "FISTERRA_PMIX_TEST_PROGRAM"

var programs = map[string]func(context.Context, *Client) error{
	"exchange": exchange,
	"lonely":   lonely,
	"deserted": deserted,
	"early":    early,
}

func TestMain(m *testing.M) {
	name := os.Getenv(programVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	c, err := Open(ctx, os.LookupEnv, Config{})
	if err == nil {
		err = programs[name](ctx, c)
	}
	if err == nil {
		err = c.Finalize(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "program failed:", err)
		os.Exit(3)
	}
	os.Exit(0)
}

// exchange tells everybody something, small and large, and checks what comes back.
func exchange(ctx context.Context, c *Client) error {
	want, err := strconv.Atoi(os.Getenv("FISTERRA_PMIX_TEST_RANKS"))
	if err != nil || c.Size() != want {
		return fmt.Errorf("%d ranks, want %d (%v)", c.Size(), want, err)
	}
	if c.JobID() == "" || c.JobID() != os.Getenv("PMIX_NAMESPACE") || strconv.Itoa(c.Rank()) != os.Getenv("PMIX_RANK") {
		return fmt.Errorf("job %q rank %d", c.JobID(), c.Rank())
	}
	if c.LocalRank() < 0 || c.LocalSize() < 1 || c.LocalRank() >= c.LocalSize() {
		return fmt.Errorf("local rank %d of %d", c.LocalRank(), c.LocalSize())
	}
	say := func(rank, n int) []byte { return bytes.Repeat([]byte{byte(rank), 0, ';', '\n', 0xff}, n) }
	start := time.Now()
	all, err := gather(ctx, c, "address", say(c.Rank(), 5))
	if err != nil {
		return err
	}
	took := time.Since(start)
	for rank, got := range all {
		if !bytes.Equal(got, say(rank, 5)) {
			return fmt.Errorf("rank %d said %q", rank, got)
		}
	}
	if err := c.Put(ctx, "empty", nil); err != nil {
		return err
	}
	all, err = gather(ctx, c, "large", say(c.Rank(), 10_000))
	if err != nil {
		return err
	}
	for rank, got := range all {
		if !bytes.Equal(got, say(rank, 10_000)) {
			return fmt.Errorf("rank %d said %d other bytes", rank, len(got))
		}
	}
	if b, err := c.Get(ctx, (c.Rank()+1)%c.Size(), "empty"); err != nil || len(b) != 0 {
		return fmt.Errorf("empty value: %q %w", b, err)
	}
	start = time.Now()
	if _, err := c.Get(ctx, 0, "nobody-put-this"); !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("missing key: %v, want ErrNotFound", err)
	}
	if d := time.Since(start); d > time.Minute {
		return fmt.Errorf("a missing key took %v", d)
	}
	for _, bad := range []string{"", "pmix.rank", "a\x00b", strings.Repeat("k", 512)} {
		if err := c.Put(ctx, bad, []byte("x")); !errors.Is(err, ErrKey) {
			return fmt.Errorf("put %q: %v, want ErrKey", bad, err)
		}
	}
	if _, err := c.Get(ctx, c.Size(), "address"); !errors.Is(err, ErrRank) {
		return fmt.Errorf("rank %d of %d: %v", c.Size(), c.Size(), err)
	}
	fmt.Printf("rank %d of %d, local %d of %d, job %s, %s (%s), exchange took %v\n", c.Rank(), c.Size(), c.LocalRank(), c.LocalSize(),
		c.JobID(), c.path, c.version, took.Round(10*time.Microsecond))
	if err := c.Finalize(ctx); err != nil {
		return err
	}
	if err := c.Put(ctx, "late", []byte("x")); !errors.Is(err, ErrClosed) {
		return fmt.Errorf("put after finalize: %v, want ErrClosed", err)
	}
	return nil
}

// gather has every rank say something under a new key, and returns what all said, by rank.
func gather(ctx context.Context, c *Client, key string, value []byte) ([][]byte, error) {
	if err := c.Put(ctx, key, value); err != nil {
		return nil, err
	}
	if err := c.Fence(ctx); err != nil {
		return nil, err
	}
	all := make([][]byte, c.Size())
	for rank := range all {
		var err error
		if all[rank], err = c.Get(ctx, rank, key); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// lonely: a fence that one rank never joins ends with its context.
func lonely(ctx context.Context, c *Client) error {
	if c.Rank() != 0 {
		<-ctx.Done() // the launcher ends this rank once rank 0 is gone
		return ctx.Err()
	}
	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	if err := c.Fence(short); !errors.Is(err, ErrTimeout) {
		return fmt.Errorf("lonely fence: %v, want ErrTimeout", err)
	}
	// The connection is stuck in the fence: that too must be said in time.
	again, stopAgain := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stopAgain()
	if err := c.Put(again, "key", nil); err != nil && !errors.Is(err, ErrTimeout) {
		return fmt.Errorf("put during the fence: %v", err)
	}
	fmt.Println("rank 0 saw no fence hang")
	os.Exit(3)
	return nil
}

// deserted: a fence that one rank never will join does not hang. It says so, or the server has forgotten
// that rank (Open MPI's in one of fifty runs): then its values are not there.
func deserted(ctx context.Context, c *Client) error {
	if c.Rank() != 0 {
		os.Exit(3)
	}
	err := c.Fence(ctx)
	fmt.Println("rank 0:", err)
	if err == nil {
		if _, err = c.Get(ctx, 1, "nothing"); errors.Is(err, ErrNotFound) {
			err = ErrLost
		}
	}
	if !errors.Is(err, ErrLost) {
		return fmt.Errorf("deserted fence: %v, want ErrLost", err)
	}
	<-ctx.Done() // ended by the launcher
	return err
}

// early: no rank is through a fence while another, of another node, has not come. The last one watches.
func early(ctx context.Context, c *Client) error {
	dir := os.Getenv("FISTERRA_PMIX_TEST_DIR")
	come := filepath.Join(dir, "come")
	if c.Rank() != c.Size()-1 {
		if err := os.WriteFile(come+strconv.Itoa(c.Rank()), nil, 0o600); err != nil {
			return err
		}
		if err := c.Fence(ctx); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "through"), nil, 0o600)
	}
	for all := []string(nil); len(all) < c.Size()-1; <-time.After(time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
		all, _ = filepath.Glob(come + "*")
	}
	for range 300 { // ms, where a fence takes a few
		<-time.After(time.Millisecond)
		if _, err := os.Stat(filepath.Join(dir, "through")); err == nil {
			return errors.New("a rank is through the fence before all have come")
		}
	}
	return c.Fence(ctx)
}

func part(t *testing.T) {
	t.Helper()
	why := ""
	if _, err := clib.Open(sonames[0]); err != nil {
		why = err.Error()
	}
	need.Part(t, "pmix", why)
}

func mpirun(t *testing.T, n int, program string) lab.Result {
	t.Helper()
	part(t)
	lab.OpenMPI.Needed(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := lab.OpenMPI.Command(t.Context(), t, n, self)
	cmd.Env = append(cmd.Env, programVariable+"="+program, "FISTERRA_PMIX_TEST_RANKS="+strconv.Itoa(n))
	return cmd.Run()
}

func TestExchangeUnderMpirun(t *testing.T) {
	for _, n := range []int{1, 3} {
		r := mpirun(t, n, "exchange")
		if r.Code != 0 || strings.Count(r.Stdout, "exchange took") != n {
			t.Fatalf("%d ranks: %v", n, r)
		}
		t.Log(r.Stdout)
	}
}

func TestFenceEndsWithItsContext(t *testing.T) {
	r := mpirun(t, 2, "lonely")
	if !strings.Contains(r.Stdout, "rank 0 saw no fence hang") {
		t.Fatal(r)
	}
}

func TestFenceNoticesADeserter(t *testing.T) {
	r := mpirun(t, 2, "deserted")
	// The launcher may end rank 0 before it has printed; it must not print anything else.
	if r.Code == 0 || strings.Contains(r.Stderr, "deserted fence") {
		t.Fatal(r)
	}
	t.Log(r.Stdout)
}

func TestClusterExchange(t *testing.T) {
	part(t)
	s := lab.Cluster(t, 2, 2)
	program := s.TestBinary()
	r := s.Exec(t.Context(), "srun", "--mpi=pmix", "-N2", "-n4", "--ntasks-per-node=2",
		"env", programVariable+"=exchange", "FISTERRA_PMIX_TEST_RANKS=4", program)
	if r.Code != 0 || strings.Count(r.Stdout, "exchange took") != 4 {
		t.Fatal(r)
	}
	t.Log(r.Stdout)

	t.Run("nobody is early", func(t *testing.T) {
		r := s.Exec(t.Context(), "srun", "--mpi=pmix", "-N2", "-n4", "--ntasks-per-node=2",
			"env", programVariable+"=early", "FISTERRA_PMIX_TEST_DIR="+t.TempDir(), program)
		if r.Code != 0 {
			t.Fatal(r)
		}
	})
}

// What is mapped is what the loader found, by its whole path.
func TestMapped(t *testing.T) {
	part(t)
	var found, mapped Client
	if err := found.load(sonames); err != nil {
		t.Fatal(err)
	}
	path := Mapped()
	if err := mapped.load([]string{path}); err != nil || mapped.fn != found.fn {
		t.Errorf("%q is mapped (%v), %s was found", path, err, found.path)
	}
}

func TestOpenWithoutServer(t *testing.T) {
	_, err := Open(t.Context(), func(string) (string, bool) { return "", false }, Config{})
	if !errors.Is(err, ErrAbsent) {
		t.Errorf("Open = %v, want ErrAbsent", err)
	}
	env := map[string]string{"PMIX_NAMESPACE": "x", "PMIX_RANK": "0"}
	lookup := func(k string) (string, bool) { v, ok := env[k]; return v, ok }
	if !Present(lookup) {
		t.Error("a server named by the environment is not present")
	}
	err = (&Client{}).load([]string{"libno_such_pmix.so"})
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "libno_such_pmix.so") && clib.Available {
		t.Errorf("an absent library: %v, want ErrNoLibrary with its name", err)
	}
	if clib.Available {
		if err = (&Client{}).load([]string{"libc.so.6"}); !errors.Is(err, ErrVersion) {
			t.Errorf("libc: %v, want ErrVersion", err)
		}
	}
}

func TestVersion(t *testing.T) {
	for text, want := range map[string][2]int{
		"OpenPMIx 4.2.2 (PMIx Standard: 4.1, Stable ABI: 0.0, Provisional ABI: 0.0)": {4, 2},
		"OpenPMIx 5.0.3, repo rev: v5.0.3 (PMIx Standard: 5.1, Stable ABI: 5.0)":     {5, 0},
		"3.2.3":                       {3, 2},
		"OpenPMIx 3.1.5rc4, Mar 2020": {3, 1},
	} {
		major, minor, err := version(text)
		if err != nil || major != want[0] || minor != want[1] {
			t.Errorf("version(%q) = %d.%d, %v, want %v", text, major, minor, err, want)
		}
	}
	if _, _, err := version("something else"); !errors.Is(err, ErrVersion) {
		t.Errorf("no version: %v", err)
	}
}

// Config.Timeout is for callers that name no deadline: one that does may wait longer, or shorter.
func TestDeadlineOfTheCallerCounts(t *testing.T) {
	// A call that is answered when the library lets it, and is told how long it has.
	call := func(ctx context.Context, timeout time.Duration, answered <-chan struct{}) (told chan time.Duration, err error) {
		c := &Client{cfg: Config{Timeout: timeout}, turn: make(chan struct{}, 1)}
		c.turn <- struct{}{}
		told = make(chan time.Duration, 1)
		_, err = c.call(ctx, "fence", "", -1, func(left time.Duration) uintptr {
			told <- left
			<-answered
			return statusSuccess
		})
		return told, err
	}
	const long = time.Minute
	never, later := make(chan struct{}), make(chan struct{})
	defer close(never)
	ctx, stop := context.WithTimeout(t.Context(), long)
	defer stop()
	time.AfterFunc(100*time.Millisecond, func() { close(later) })
	told, err := call(ctx, 20*time.Millisecond, later)
	if left := <-told; err != nil || left < time.Second {
		t.Errorf("a call that has %v is answered after 100 ms, with a Timeout of 20 ms: %v; the library was told %v", long, err, left)
	}
	if _, err := call(t.Context(), 20*time.Millisecond, never); !errors.Is(err, ErrTimeout) {
		t.Errorf("without a deadline: %v, want ErrTimeout", err)
	}
	cause := errors.New("the caller's reason")
	short, stop := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, cause)
	defer stop()
	if _, err := call(short, long, never); !errors.Is(err, cause) {
		t.Errorf("with a deadline before Timeout: %v, want %q", err, cause)
	}
}
