package mpitest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// These tests start real ranks by a system's MPI: mpirun or mpiexec starts this
// test binary again, running TestMPIRank alone, with the name of a rank program.
const (
	programVariable = "FISTERRA_TEST_MPI_PROGRAM"
	libraryVariable = "FISTERRA_TEST_MPI_LIBRARY"
	layoutVariable  = "FISTERRA_TEST_MPI_LAYOUT" // the ranks' layouts differ
	skipVariable    = "FISTERRA_TEST_MPI_SKIP"   // how many checks not to run
)

var rankPrograms = map[string]func(context.Context, *mpi.World) error{
	"conformance": runChecks,
	"describes":   describes,
	"mallocs":     mallocs,
	"collectives": ownCollectives,
	"in flight":   inFlight,
	"overtaken":   overtaken,
	"eager":       eager,
	"limits":      limits,
	"truncation":  func(ctx context.Context, w *mpi.World) error { return truncation(ctx, w.Comm()) },
	"freed":       freed,
	"hasty":       hasty,
	"close":       func(ctx context.Context, w *mpi.World) error { return checkClose(ctx, w.Comm()) },
	"revoked":     revoked,
	"background":  background,
	"memory":      registeredMemory,
	"nothing":     func(context.Context, *mpi.World) error { return nil },
	"abort": func(ctx context.Context, w *mpi.World) error {
		if w.Rank() == 1 {
			w.Abort(7, "rank 1 ends the job")
		}
		_, err := mpi.Recv(ctx, w.Comm(), make([]byte, 1), mpi.AnySource, mpi.AnyTag)
		return err
	},
}

// TestMPIRank is a rank of the other tests.
func TestMPIRank(t *testing.T) {
	program, ok := os.LookupEnv(programVariable)
	if !ok {
		t.Skip("a rank of the other tests")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cfg := &mpi.Config{
		Transport: "mpi", MPILibrary: os.Getenv(libraryVariable), StartTimeout: 2 * time.Minute,
		Log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Layout: []mpi.LayoutField{{Name: "roles", Value: "1 ps"}},
	}
	if os.Getenv(layoutVariable) != "" {
		info, err := mpi.Detect(os.LookupEnv)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Layout = append(cfg.Layout, mpi.LayoutField{Name: "colour", Value: []string{"red", "blue"}[info.Rank/2]})
	}
	w, err := mpi.Init(ctx, cfg)
	if err != nil {
		fmt.Println("init failed:", strings.ReplaceAll(err.Error(), "\n", " "))
		for name, sentinel := range map[string]error{"ErrLauncher": mpi.ErrLauncher, "ErrLayout": mpi.ErrLayout, "ErrTransport": mpi.ErrTransport} {
			if errors.Is(err, sentinel) {
				fmt.Println("init failed with", name)
			}
		}
		os.Exit(3)
	}
	err = rankPrograms[program](ctx, w)
	if err == nil {
		if err = closeWorld(ctx, w); err == nil {
			if err := mpi.Send(ctx, w.Comm(), []byte{1}, 0, 1); !errors.Is(err, mpi.ErrClosed) {
				fmt.Println("send after close:", err)
				os.Exit(4)
			}
		}
	}
	if err != nil {
		fmt.Printf("rank %d failed: %v\n", w.Rank(), err)
		w.Abort(3, err.Error())
	}
	os.Exit(0)
}

type library struct{ lab.Launcher }

// eachLibrary runs f with both, where they are.
func eachLibrary[T interface {
	testing.TB
	Run(string, func(T)) bool
}](t T, f func(t T, l library)) {
	for _, l := range lab.Launchers() {
		t.Run(l.Part, func(t T) {
			l.Needed(t)
			f(t, library{l})
		})
	}
}

// start runs a program on n ranks.
func (l library) start(t testing.TB, n int, program string, env ...string) lab.Result {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return l.run(t, n, append(env, programVariable+"="+program), self, "-test.run=^TestMPIRank$", "-test.timeout=290s")
}

func (l library) run(t testing.TB, n int, env []string, command ...string) lab.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := l.Command(ctx, t, n, command[0], command[1:]...)
	cmd.Env = append(cmd.Env, env...)
	r := cmd.Run()
	if r.Err != nil {
		t.Fatalf("%s on %d ranks: %v\n%s%s", strings.Join(command, " "), n, r.Err, r.Stdout, r.Stderr)
	}
	return r
}

// ranks runs a program that must end well, and returns what it printed.
func (l library) ranks(t testing.TB, n int, program string, env ...string) string {
	t.Helper()
	r := l.start(t, n, program, env...)
	if r.Code != 0 {
		t.Fatalf("%s on %d ranks ended with %d:\n%s%s", program, n, r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// TestMPIConformance runs the table of checks: one launch for each number of
// ranks, and another one for those behind a check that failed.
func TestMPIConformance(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		for n := 1; n <= 8; n++ {
			checks := checksFor(n)
			for done := 0; done < len(checks); {
				r := l.start(t, n, "conformance", fmt.Sprintf("%s=%d", skipVariable, done))
				for _, c := range checks[done:] {
					done++
					if !t.Run(c.Name, func(t *testing.T) { reported(t, r, n, c) }) {
						break
					}
				}
				if done == len(checks) && r.Code != 0 {
					t.Errorf("%d ranks ended with %d:\n%s%s", n, r.Code, r.Stdout, r.Stderr)
				}
			}
		}
	})
}

// reported holds what the ranks said of a check.
func reported(t *testing.T, r lab.Result, n int, c Check) {
	passed := 0
	for line := range strings.Lines(r.Stdout) {
		switch word, rest, _ := strings.Cut(strings.TrimSpace(line), " "+c.Name+" "); word {
		case "passed":
			passed++
		case "failed":
			t.Error(rest)
		}
	}
	if passed != n && !t.Failed() {
		t.Errorf("%d of %d ranks got through it:\n%s%s", passed, n, r.Stdout, r.Stderr)
	}
}

// checksFor are the checks for a number of ranks.
func checksFor(ranks int) []Check {
	return slices.DeleteFunc(Checks(), func(c Check) bool {
		return c.Ranks != ranks || c.Name == "Large" && !wantLarge()
	})
}

// runChecks runs the checks for this number of ranks, each on a communicator of
// its own. After one that failed on any rank nothing is certain: the job ends.
func runChecks(ctx context.Context, w *mpi.World) error {
	skip, err := strconv.Atoi(os.Getenv(skipVariable))
	if err != nil {
		return err
	}
	for _, check := range checksFor(w.Size())[skip:] {
		c, err := w.Comm().Dup(ctx)
		if err != nil {
			return err
		}
		if check.Name == "Truncation" && w.Launcher() == mpi.ByMPICH {
			check.Run = truncation // MPICH does not tell the length
		}
		limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
		err = check.Run(limited, c)
		cancel()
		if err != nil {
			fmt.Printf("failed %s rank %d: %v\n", check.Name, w.Rank(), err)
			return err
		}
		fmt.Printf("passed %s rank %d\n", check.Name, w.Rank())
		c.Free()
	}
	return nil
}

func TestMPIWorldIsDescribed(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) { t.Log(l.ranks(t, 2, "describes")) })
}

func TestMPIHotCallsDoNotAllocate(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) { t.Log(l.ranks(t, 2, "mallocs")) })
}

func TestMPIOwnCollectives(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		for _, n := range []int{1, 3} {
			l.ranks(t, n, "collectives")
		}
	})
}

func TestMPIClose(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		for range 3 {
			l.ranks(t, 3, "close")
		}
	})
}

func TestMPICommunicatorsGivenUpAtAnyTime(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		for _, n := range []int{2, 3} {
			t.Log(l.ranks(t, n, "hasty"))
		}
	})
}

func TestMPISendLeftInFlight(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) { l.ranks(t, 2, "in flight") })
}

func TestMPIFinishedWhileGivenUp(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) { l.ranks(t, 2, "overtaken") })
}

// Short messages need no receiver to leave, whatever a library's device adds to them.
func TestMPIShortSendsMeetHeadOn(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) { l.ranks(t, 2, "eager") })
}

func TestMPITagsEndWhereTheLibrarysDo(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) { t.Log(l.ranks(t, 2, "limits")) })
}

// Open MPI by itself writes all of a message that is too long.
func TestMPITruncationSparesWhatLiesBehind(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		l.ranks(t, 2, "truncation")
		if l.Part == "openmpi" {
			l.ranks(t, 2, "truncation", "OMPI_MCA_btl=tcp,self")
			l.ranks(t, 2, "truncation", lab.ThroughUCX()...)
		}
	})
}

func TestMPIFreeIsLocal(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) { l.ranks(t, 2, "freed") })
}

func TestMPIRevokeIsLocal(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) { l.ranks(t, 2, "revoked") })
}

// A receiver that computes must not keep a large message's sender waiting.
func TestMPIProgressInTheBackground(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		fifo := filepath.Join(t.TempDir(), "done")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		l.ranks(t, 2, "background", fifoVariable+"="+fifo)
	})
}

func TestMPIAbortEndsAllRanks(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		if r := l.start(t, 2, "abort"); r.Code != 7 {
			t.Errorf("exit code %d, want 7:\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	})
}

func TestMPIRanksMustAgreeOnTheLayout(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		r := l.start(t, 3, "nothing", layoutVariable+"=1")
		const want = `colour is "red" on ranks 0,1, "blue" on rank 2`
		// The launcher ends the others as soon as one has failed, perhaps before they speak.
		if refused := strings.Count(r.Stdout, "init failed: "); r.Code != 3 || refused == 0 || strings.Count(r.Stdout, want) != refused {
			t.Errorf("exit code %d, want 3 and each rank's %q:\n%s%s", r.Code, want, r.Stdout, r.Stderr)
		} else if !strings.Contains(r.Stdout, "init failed with ErrLayout") {
			t.Errorf("not ErrLayout:\n%s", r.Stdout)
		}
	})
}

// Under another library's launcher every rank would be a world of one.
func TestMPIWrongLauncherIsRefused(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		l.Other().Needed(t)
		r := l.start(t, 2, "nothing", libraryVariable+"="+l.Other().Library, "OMPI_MCA_ess_singleton_isolated=1")
		if r.Code == 0 || !strings.Contains(r.Stdout, "init failed with ErrLauncher") || !strings.Contains(r.Stdout, "sees 1") {
			t.Errorf("exit code %d, want another than 0 and ErrLauncher:\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	})
}

// Where the launcher does not tell how many ranks there are, what it tells of this host shows that there are more.
func TestMPIWrongLauncherOfUnknownSizeIsRefused(t *testing.T) {
	l := library{lab.MPICH}
	l.Needed(t)
	l.Other().Needed(t)
	l.Argv = append(slices.Clone(l.Argv), "-pmi-port")
	r := l.start(t, 2, "nothing", libraryVariable+"="+l.Other().Library, "OMPI_MCA_ess_singleton_isolated=1")
	if r.Code == 0 || !strings.Contains(r.Stdout, "init failed with ErrLauncher") || !strings.Contains(r.Stdout, "sees 1 ranks, but the launcher (PMI_PORT) has at least 2") {
		t.Errorf("exit code %d, want another than 0 and ErrLauncher:\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

func TestMPIAbsentLibraryIsNamed(t *testing.T) {
	eachLibrary(t, func(t *testing.T, l library) {
		r := l.start(t, 1, "nothing", libraryVariable+"=/nowhere/libmpi.so")
		if r.Code != 3 || !strings.Contains(r.Stdout, "/nowhere/libmpi.so") || !strings.Contains(r.Stdout, "init failed with ErrTransport") {
			t.Errorf("exit code %d, want 3 and the library's name:\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	})
}
