package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/clib"
	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
)

// programVariable names the rank program that this test binary runs instead of tests,
// libraryVariable the library it asks for.
const (
	programVariable = "FISTERRA_NATIVE_TEST_PROGRAM"
	libraryVariable = "FISTERRA_NATIVE_TEST_LIBRARY"
	otherVariable   = "FISTERRA_NATIVE_TEST_OTHER"
)

// programs are what ranks run; each is started by a test of the same words.
var programs = map[string]func(context.Context, *World) error{
	"pairs":         pairs,
	"probes":        probes,
	"cancels":       cancels,
	"errors":        wrongUse,
	"groups":        groups,
	"collectives":   collectives,
	"signals":       signals,
	"mallocs":       mallocs,
	"stacks":        stacks,
	"collector":     collector,
	"goroutines":    goroutines,
	"large":         large,
	"idle":          idleRank,
	"late":          late,
	"registrations": registrations,
	"two":           two,
	"storm":         storm,
	"leave":         func(context.Context, *World) error { return nil },
	"fail": func(ctx context.Context, w *World) error {
		if w.comm.rank == 1 {
			return errors.New("rank 1 gives up")
		}
		return neverComes(ctx, w)
	},
	"panic": func(ctx context.Context, w *World) error {
		if w.comm.rank == 1 {
			panic("rank 1 panics")
		}
		return neverComes(ctx, w)
	},
	"pingpong": pingpong,
	"lengths":  allLengths,
}

func neverComes(ctx context.Context, w *World) error {
	_, err := w.comm.Recv(ctx, make([]byte, 1), AnySource, AnyTag)
	return err
}

func TestMain(m *testing.M) {
	name := os.Getenv(programVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	if err := program(name); err != nil {
		fmt.Fprintln(os.Stderr, "program failed:", err)
		os.Exit(3)
	}
	os.Exit(0)
}

func program(name string) error {
	ctx, stop := context.WithTimeout(context.Background(), 90*time.Second)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	l, err := Open(Config{Path: os.Getenv(libraryVariable), Lookup: os.LookupEnv, Log: log})
	if err != nil {
		return err
	}
	w, err := l.Init(ctx, Options{})
	if err != nil {
		return err
	}
	if w.comm.rank == 0 {
		fmt.Printf("library %s of %s, why: %s, tags to %d, status layout %d\n", l, l.Path, l.Why, w.caps.MaxTag, w.layout)
	}
	// No rank leaves in a way that the launcher takes for a normal end while the others wait for it.
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic; the job is aborted", "rank", w.comm.rank, "panic", p, "stack", string(debug.Stack()))
			w.Abort(2)
		}
	}()
	if err = programs[name](ctx, w); err == nil {
		err = w.Close(ctx)
	}
	if err != nil {
		log.Error("the job is aborted", "rank", w.comm.rank, "error", err)
		w.Abort(1)
	}
	return nil
}

type launch struct {
	part string
	argv []string
}

var launches = []launch{
	{"openmpi", []string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"}},
	{"mpich", []string{"mpiexec.mpich", "-n"}},
}

// each runs f under both launchers.
func each(t *testing.T, f func(t *testing.T, l launch)) {
	for _, l := range launches {
		t.Run(l.part, func(t *testing.T) {
			l.needed(t)
			f(t, l)
		})
	}
}

// needed skips where the launcher, or the right to call C, is not there.
func (l launch) needed(t testing.TB) {
	t.Helper()
	if !clib.Available {
		t.Skip("built without support for C libraries")
	}
	why := ""
	if _, err := exec.LookPath(l.argv[0]); err != nil {
		why = err.Error()
	}
	need.Part(t, l.part, why)
}

// throughUCX makes Debian's Open MPI use UCX, which it does not by itself.
var throughUCX = []string{"OMPI_MCA_pml=ucx", "OMPI_MCA_pml_ucx_tls=any", "OMPI_MCA_pml_ucx_devices=any"}

type outcome struct {
	code int
	text string
}

// start runs n ranks of a program and returns what became of it.
func (l launch) start(t testing.TB, n int, program string, env ...string) outcome {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 120*time.Second)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := lab.Command(ctx, t, l.argv[0], append(append([]string{}, l.argv[1:]...), strconv.Itoa(n), self)...)
	cmd.Env = append(append(os.Environ(), programVariable+"="+program, "TMPDIR=/tmp"), env...)
	r := cmd.Run()
	if r.Err != nil {
		t.Fatalf("%s of %d ranks did not end by itself: %v", program, n, r)
	}
	return outcome{r.Code, r.Stdout + r.Stderr}
}

// ranks runs n ranks of a program, which must end well.
func (l launch) ranks(t *testing.T, n int, program string, env ...string) {
	t.Helper()
	o := l.start(t, n, program, env...)
	if o.code != 0 {
		t.Fatalf("%s of %d ranks ended with %d:\n%s", program, n, o.code, o.text)
	}
	t.Log(strings.TrimSpace(o.text))
}

func TestPairs(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 3, "pairs") })
}

func TestProbes(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "probes") })
}

func TestCancels(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "cancels") })
}

func TestErrorsNameRanks(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "errors") })
}

func TestGroupsMadeConcurrently(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 4, "groups") })
}

func TestCollectives(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		for _, n := range []int{1, 2, 3} {
			l.ranks(t, n, "collectives")
		}
	})
}

func TestGoKeepsItsSignals(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		l.ranks(t, 2, "signals")
		if l.part == "openmpi" { // takes signals only if UCX drives it
			l.ranks(t, 2, "signals", throughUCX...)
		}
	})
}

func TestHotCallsDoNotAllocate(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "mallocs") })
}

func TestBuffersEscapeFromGrowingStacks(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "stacks") })
}

func TestBuffersSurviveTheCollector(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "collector", "GOGC=5") })
}

func TestManyGoroutines(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "goroutines") })
}

func TestLargeCounts(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "large") })
}

func TestIdleRankSleeps(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "idle") })
}

func TestCloseCancelsReceives(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "late") })
}

// A rank that fails or panics must not look like a normal end, and must end the rank
// that waits for it.
func TestEveryEndIsSeenByTheLauncher(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		l.ranks(t, 2, "leave")
		for program, says := range map[string]string{"fail": "rank 1 gives up", "panic": "rank 1 panics"} {
			o := l.start(t, 2, program)
			if o.code == 0 || !strings.Contains(o.text, says) {
				t.Errorf("%s: exit code %d, want another than 0 and %q in:\n%s", program, o.code, says, o.text)
			}
		}
	})
}

// other is a library that a launcher is not of.
var other = map[string]string{"openmpi": "libmpich.so.12", "mpich": "libmpi.so.40"}

// Under another library's launcher every rank would be a world of one.
func TestWrongLauncherIsRefused(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		if _, err := clib.Open(other[l.part]); err != nil {
			need.Part(t, map[string]string{"openmpi": "mpich", "mpich": "openmpi"}[l.part], err.Error())
		}
		o := l.start(t, 2, "leave", libraryVariable+"="+other[l.part], "OMPI_MCA_ess_singleton_isolated=1")
		if o.code == 0 || !strings.Contains(o.text, ErrLauncher.Error()) || !strings.Contains(o.text, "started 2 ranks") {
			t.Errorf("exit code %d, want another than 0 and %q in:\n%s", o.code, ErrLauncher, o.text)
		}
	})
}

func TestTwoLibrariesAreRefused(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		if _, err := clib.Open(other[l.part]); err != nil {
			need.Part(t, map[string]string{"openmpi": "mpich", "mpich": "openmpi"}[l.part], err.Error())
		}
		l.ranks(t, 1, "two", otherVariable+"="+other[l.part])
	})
}

func two(ctx context.Context, w *World) error {
	if _, err := Open(Config{Path: os.Getenv(otherVariable)}); !errors.Is(err, ErrTwoLibraries) {
		return fmt.Errorf("a second library: %v, want ErrTwoLibraries", err)
	}
	l, err := Open(Config{Path: w.lib.Path})
	if err != nil {
		return fmt.Errorf("the same library again: %w", err)
	}
	if _, err := l.Init(ctx, Options{}); !errors.Is(err, ErrTwoLibraries) {
		return fmt.Errorf("a second initialisation: %v, want ErrTwoLibraries", err)
	}
	return pingpongs(ctx, w, 0, nil)
}

func signals(ctx context.Context, w *World) error {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGUSR1)
	for range 5 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			return err
		}
		select {
		case <-caught:
		case <-ctx.Done():
			return errors.New("SIGUSR1 was not delivered to Go")
		}
		if r := nilDereference(); r == nil {
			return errors.New("a nil dereference did not panic")
		}
		if err := pingpongs(ctx, w, 10, make([]byte, 8)); err != nil {
			return err
		}
	}
	changed, err := w.lib.signals.Restore()
	if err != nil || len(changed) > 0 {
		return fmt.Errorf("signals %v were taken after Init: %v", changed, err)
	}
	return nil
}

func nilDereference() (recovered any) {
	defer func() { recovered = recover() }()
	var p *int
	return *p
}
