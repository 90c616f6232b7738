package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"golang.org/x/sys/unix"
)

// TestMain lets the test binary play the guard and the launcher that is killed.
func TestMain(m *testing.M) {
	switch os.Getenv("LAUNCH_TEST_ROLE") {
	case "guard":
		RunGuard(os.Stdin)
		os.Exit(0)
	case "tracer":
		trace()
		os.Exit(0)
	case "launcher":
		_, err := Run(context.Background(), Config{
			Ranks: 2, Program: "sh", Args: []string{"-c", os.Getenv("LAUNCH_TEST_SCRIPT")},
			Guard: guardCommand(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		})
		fmt.Println(err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func guardCommand() []string {
	return []string{"env", "LAUNCH_TEST_ROLE=guard", os.Args[0]}
}

func run(t *testing.T, cfg Config, script string) (Outcome, string) {
	t.Helper()
	var out bytes.Buffer
	cfg.Program, cfg.Args = "sh", []string{"-c", script}
	cfg.Stdout, cfg.Stderr = &out, &out
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return o, out.String()
}

func TestRanksGetTheirPlaceAndSecret(t *testing.T) {
	o, out := run(t, Config{Ranks: 3, Label: ByRank},
		`echo $FISTERRA_RANK of $FISTERRA_SIZE local $FISTERRA_LOCAL_RANK of $FISTERRA_LOCAL_SIZE; eval "wc -c <&$FISTERRA_SECRET_FD"; env | grep -ci secret=; true`)
	if o.Code != 0 {
		t.Errorf("code %d", o.Code)
	}
	for _, want := range []string{"0: 0 of 3 local 0 of 3\n", "2: 2 of 3 local 2 of 3\n", "1: 32\n", "1: 0\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestMissingProgram(t *testing.T) {
	_, err := Run(t.Context(), Config{Ranks: 1, Program: "no-such-program-here"})
	if err == nil || !strings.Contains(err.Error(), "no-such-program-here") {
		t.Errorf("error %v", err)
	}
}

func TestRanksThatCannotBe(t *testing.T) {
	for _, n := range []int{0, -1, MaxRanks + 1, math.MaxInt} {
		if o, err := Run(t.Context(), Config{Ranks: n, Program: "true"}); !errors.Is(err, ErrStart) || !errors.Is(err, ErrRanks) {
			t.Errorf("%d: %+v, %v", n, o, err)
		}
	}
}

// Go ends a program that has 10,000 threads, and there may be more ranks. Nor may the launcher hold more descriptors for a rank
// than the two of its output and Go's own.
func TestRanksTakeNoThreads(t *testing.T) {
	const ranks = 200
	threads := func() int { return pprof.Lookup("threadcreate").Count() }
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	open, err := os.OpenFile(gate, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	descriptors := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Error(err)
		}
		return len(open)
	}
	before, during := threads(), 0
	heldBefore, held := descriptors(), 0
	all := &lineCount{want: ranks, reached: func() {
		during, held = threads(), descriptors()
		open.Write(bytes.Repeat([]byte("\n"), ranks)) // each reads one
	}}
	o, err := Run(t.Context(), Config{Ranks: ranks, Stdout: all, Program: "sh", Args: []string{"-c", "echo there; read x <" + gate}})
	if err != nil || o.Code != 0 {
		t.Fatalf("%+v, %v", o, err)
	}
	if during-before > ranks/2 {
		t.Errorf("%d threads before, %d with %d ranks", before, during, ranks)
	}
	if held-heldBefore > 3*ranks+ranks/2 {
		t.Errorf("%d descriptors before, %d with %d ranks", heldBefore, held, ranks)
	}
}

// lineCount calls a function when so many lines have been written.
type lineCount struct {
	want    int
	reached func()
}

func (l *lineCount) Write(b []byte) (int, error) {
	if n := bytes.Count(b, []byte("\n")); n > 0 {
		if l.want -= n; l.want == 0 {
			l.reached()
		}
	}
	return len(b), nil
}

func expectGone(t *testing.T, pids string) {
	t.Helper()
	fields := strings.Fields(pids)
	if len(fields) == 0 {
		t.Fatal("no pid was printed")
	}
	for _, w := range fields {
		pid, err := strconv.Atoi(w)
		if err != nil {
			t.Fatalf("not a pid: %q", w)
		}
		if err := lab.AwaitEnd(pid, time.Minute); err != nil {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("left behind: %v", err)
		}
	}
}
