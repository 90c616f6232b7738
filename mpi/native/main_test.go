package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
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
// libraryVariable the library it asks for, launcherVariable who started how many ranks.
const (
	programVariable = "FISTERRA_NATIVE_TEST_PROGRAM"
	libraryVariable = "FISTERRA_NATIVE_TEST_LIBRARY"
	otherVariable   = "FISTERRA_NATIVE_TEST_OTHER"

	launcherVariable = "FISTERRA_NATIVE_TEST_LAUNCHER"

	// wordsVariable names a file to which ranks write what they log, too: a launcher that ends a job may lose what it has not read yet.
	wordsVariable = "FISTERRA_NATIVE_TEST_WORDS"
)

// programs are what ranks run; each is started by a test of the same words.
var programs = map[string]func(context.Context, *World) error{
	"pairs":         pairs,
	"probes":        probes,
	"cancels":       cancels,
	"errors":        wrongUse,
	"groups":        groups,
	"leavers":       leavers,
	"closing":       closingGroups,
	"collectives":   collectives,
	"signals":       signals,
	"environment":   environment,
	"mallocs":       mallocs,
	"stacks":        stacks,
	"collector":     collector,
	"goroutines":    goroutines,
	"large":         large,
	"idle":          idleRank,
	"late":          late,
	"unfinished":    unfinished,
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
	ctx, stop := context.WithTimeout(context.Background(), 4*time.Minute)
	defer stop()
	says := io.Writer(os.Stderr)
	if path := os.Getenv(wordsVariable); path != "" {
		words, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer words.Close()
		says = io.MultiWriter(words, os.Stderr)
	}
	log := slog.New(slog.NewTextHandler(says, nil))
	kind, ranks, _ := strings.Cut(os.Getenv(launcherVariable), " ")
	n, err := strconv.Atoi(ranks)
	if err != nil {
		return fmt.Errorf("%s: %w", launcherVariable, err)
	}
	l, err := Open(Config{Path: os.Getenv(libraryVariable), Launcher: Launcher{Kind: LauncherKind(kind), Why: launcherVariable}, Log: log})
	if err != nil {
		return err
	}
	w, err := l.Init(ctx, Options{Ranks: n})
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

// startedBy tells ranks who starts them.
func startedBy(kind LauncherKind, n int) string {
	return fmt.Sprintf("%s=%s %d", launcherVariable, kind, n)
}

type launch struct {
	lab.Launcher
	binary string // that ranks run; this test binary if empty
}

// kind is the launcher as its ranks know it.
func (l launch) kind() LauncherKind {
	if l.Part == lab.OpenMPI.Part {
		return ByOpenMPI
	}
	return ByHydra
}

// each runs f under both launchers.
func each(t *testing.T, f func(t *testing.T, l launch)) {
	for _, l := range lab.Launchers() {
		t.Run(l.Part, func(t *testing.T) {
			l := launch{Launcher: l}
			l.needed(t)
			f(t, l)
		})
	}
}

// needed skips where the launcher, or the right to call C, is not there.
func (l launch) needed(t testing.TB) {
	t.Helper()
	why := ""
	if !clib.Available {
		why = clib.ErrBuiltWithout.Error()
	}
	need.Part(t, l.Part, why)
	l.Needed(t)
}

type outcome struct {
	code int
	text string
}

// start runs n ranks of a program and returns what became of it.
func (l launch) start(t testing.TB, n int, program string, env ...string) outcome {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	binary := l.binary
	if binary == "" {
		var err error
		if binary, err = os.Executable(); err != nil {
			t.Fatal(err)
		}
	}
	cmd := l.Command(ctx, t, n, binary)
	cmd.Env = append(append(cmd.Env, programVariable+"="+program, startedBy(l.kind(), n)), env...)
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

// A rank that gives a group up must not leave the others in a call that never returns.
func TestGroupsGivenUp(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		for _, n := range []int{2, 3} {
			l.ranks(t, n, "leavers")
		}
	})
}

func TestGroupsMadeUntilClose(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 3, "closing") })
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
		if l.Part == "openmpi" { // takes signals only if UCX drives it
			l.ranks(t, 2, "signals", lab.ThroughUCX()...)
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

func TestCloseWaitsForBlockingCalls(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "unfinished") })
}

// A rank that fails or panics must not look like a normal end, and must end the rank
// that waits for it.
func TestEveryEndIsSeenByTheLauncher(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		l.ranks(t, 2, "leave")
		for program, says := range map[string]string{"fail": "rank 1 gives up", "panic": "rank 1 panics"} {
			path := filepath.Join(t.TempDir(), "words")
			o := l.start(t, 2, program, wordsVariable+"="+path)
			words, err := os.ReadFile(path)
			if err != nil {
				t.Errorf("%s: %v", program, err)
			}
			if text := o.text + string(words); o.code == 0 || !strings.Contains(text, says) {
				t.Errorf("%s: exit code %d, want another than 0 and %q in:\n%s", program, o.code, says, text)
			}
		}
	})
}

// other is the other library's soname, which must be there.
func (l launch) other(t *testing.T) string {
	t.Helper()
	other := l.Other()
	if _, err := clib.Open(other.Library); err != nil {
		need.Part(t, other.Part, err.Error())
	}
	return other.Library
}

// Under another library's launcher every rank would be a world of one.
func TestWrongLauncherIsRefused(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		o := l.start(t, 2, "leave", libraryVariable+"="+l.other(t), "OMPI_MCA_ess_singleton_isolated=1")
		if o.code == 0 || !strings.Contains(o.text, ErrLauncher.Error()) || !strings.Contains(o.text, "started 2 ranks") {
			t.Errorf("exit code %d, want another than 0 and %q in:\n%s", o.code, ErrLauncher, o.text)
		}
	})
}

func TestTwoLibrariesAreRefused(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		l.ranks(t, 1, "two", otherVariable+"="+l.other(t))
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
