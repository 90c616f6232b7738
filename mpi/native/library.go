// Package native is the system's MPI library, found at run time and called without a
// C compiler, headers or cgo: Open MPI, MPICH and the libraries of its ABI (Intel MPI,
// MVAPICH, Cray MPICH), and the standard ABI of MPI 5.0.
//
// [Open] finds and classifies a library, [Library.Init] starts it and returns a [World], whose [Comm] offers
// nonblocking sends, receives, probes and the library's own collectives on caller-owned [Request] values. Nothing
// here blocks inside MPI: a wait polls, gives the core away with sched_yield and at last sleeps in the kernel. The
// exception is [World.CreateGroup], for which MPI has only a blocking call: its members enter the call when all
// have said that they will, and it ends when all have entered, whatever their contexts do meanwhile. The library is
// asked for MPI_THREAD_SERIALIZED, and one lock is held around each call; any goroutine may call anything.
//
// What MPI cannot do is in [Caps]: it does not tell which peer was lost (the launcher
// ends the job instead), it cannot take back a send, and it has no descriptor to sleep
// on, so a rank that idles wakes up every 20 µs to 1 ms to look.
//
// A process that exits without [World.Close] or [World.Abort] is taken for a normal
// end by MPICH's launcher, which then kills the other ranks silently with status 0;
// call one of the two on every path.
package native

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// Config says which library to open.
type Config struct {
	// Path is a file or soname to use whatever the launcher implies; empty: chosen by
	// the launcher, then by what the loader finds.
	Path string
	// Launcher is who started this process; zero: nobody.
	Launcher Launcher
	// Log receives what was tried and chosen; nil discards.
	Log *slog.Logger
}

// Library is a loaded MPI library, not yet initialised.
type Library struct {
	Name     string // "openmpi", "mpich", "intel", "mvapich", "cray", or the ABI's name
	Version  string // "4.1.4"; empty if the library's text does not tell
	Path     string // the file the loader found
	Why      string // why this one
	Text     string // first line of what the library says of itself
	Family   Family
	Launcher Launcher

	c       *clib.Library
	abi     *abi
	fn      functions
	signals *clib.SignalActions
	log     *slog.Logger
}

func (l *Library) String() string {
	if l.Version == "" {
		return l.Name
	}
	return l.Name + " " + l.Version
}

// Open loads an MPI library into this process, where it stays: cfg.Path if that is set, else the first that it
// finds of those whose ranks cfg.Launcher can start or, if the launcher implies none, of the usual names. The
// symbols that a library exports tell its kind, not its name. Signal actions that loading changed are put back, and
// variables that keep UCX and libfabric from taking signals, or from trusting their registration caches about Go's
// heap, are set in the environment unless the user has set them.
//
// The errors wrap [ErrNoLibrary], [ErrUnknownLibrary] or [ErrTwoLibraries]; they list
// what was tried.
func Open(cfg Config) (*Library, error) {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	names, implied := cfg.Launcher.sonames()
	why := cfg.Launcher.String()
	if !implied {
		why = "found by the loader, " + why
	}
	if cfg.Path != "" {
		names, why = []string{cfg.Path}, "asked for"
	}
	if !clib.Available {
		return nil, fmt.Errorf("native: %w: %w", ErrNoLibrary, clib.ErrBuiltWithout)
	}

	before := clib.Global("MPI_Init_thread")
	signals := clib.Signals()
	if err := prepareEnvironment(os.LookupEnv, os.Setenv); err != nil {
		return nil, fmt.Errorf("native: %w", err)
	}
	var tried []string
	for _, name := range names {
		c, err := clib.Open(name)
		if err != nil {
			tried = append(tried, err.Error())
			log.Debug("MPI library not loaded", "name", name, "error", err)
			continue
		}
		changed, err := signals.Restore()
		if err != nil {
			return nil, fmt.Errorf("native: %w", err)
		}
		log.Debug("MPI library loaded", "name", name, "path", c.Path(), "signals_restored", len(changed))
		if before != 0 && c.Sym("MPI_Init_thread") != before {
			return nil, fmt.Errorf("native: %w: %s, beside one that has MPI_Init_thread at %#x", ErrTwoLibraries, c.Path(), before)
		}
		l := &Library{Path: c.Path(), Why: fmt.Sprintf("%s: %s", name, why), Launcher: cfg.Launcher, c: c, signals: signals, log: log}
		if err := l.classify(); err != nil {
			return nil, fmt.Errorf("native: %s: %w", c.Path(), err)
		}
		return l, nil
	}
	return nil, fmt.Errorf("native: %w (%s; another can be named, by --mpi-library); tried:\n\t%s", ErrNoLibrary, why, strings.Join(tried, "\n\t"))
}

// classify finds out which binary interface the library has, and its name and version.
func (l *Library) classify() error {
	version := l.c.Sym("MPI_Get_library_version")
	if version == 0 || l.c.Sym("MPI_Init_thread") == 0 {
		return fmt.Errorf("%w: no MPI_Get_library_version or MPI_Init_thread in it", ErrUnknownLibrary)
	}
	text := make([]byte, 8192)
	n := new(int32)
	clib.Call(version, uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(n)))
	whole := clib.Text(text)

	major, minor := new(int32), new(int32)
	*major = -1
	if f := l.c.Sym("MPI_Abi_get_version"); f != 0 {
		clib.Call(f, uintptr(unsafe.Pointer(major)), uintptr(unsafe.Pointer(minor)))
	}
	var err error
	switch {
	case *major >= 1:
		l.abi = forum()
	case l.c.Sym("ompi_mpi_comm_world") != 0:
		l.abi, err = openMPI(l.c.Sym)
	case isMPICH(whole):
		l.abi = mpich()
	default:
		err = fmt.Errorf("%w: it calls itself %q", ErrUnknownLibrary, firstLine(whole))
	}
	if err != nil {
		return err
	}
	l.Family = l.abi.family
	l.Text = firstLine(whole)
	l.Name, l.Version = product(whole, l.Family)
	l.fn, err = resolve(l.c.Sym)
	return err
}

// isMPICH recognises the libraries that keep MPICH's ABI by what they call themselves.
func isMPICH(text string) bool {
	for _, name := range []string{"MPICH", "Intel(R) MPI", "MVAPICH", "CRAY MPICH", "ParaStation"} {
		if strings.Contains(text, name) {
			return true
		}
	}
	return false
}

// product reads name and version from a library's text about itself: "Open MPI v4.1.4,
// package: ...", "MPICH Version:\t4.0.2\n...", "Intel(R) MPI Library 2021.18 for Linux",
// "MVAPICH2 Version : 2.3.7", "MPI VERSION : CRAY MPICH version 8.1.25".
func product(text string, family Family) (name, version string) {
	for _, p := range []struct{ mark, name string }{
		{"Intel(R) MPI Library", "intel"}, {"CRAY MPICH version", "cray"}, {"MVAPICH2 Version", "mvapich"},
		{"MVAPICH Version", "mvapich"}, {"MPICH Version", "mpich"}, {"Open MPI", "openmpi"}, {"ParaStation MPI", "parastation"},
	} {
		_, after, ok := strings.Cut(text, p.mark)
		if !ok {
			continue
		}
		after = strings.TrimLeft(after, " :\tv")
		end := strings.IndexAny(after, " ,\n\t")
		if end < 0 {
			end = len(after)
		}
		return p.name, strings.TrimRight(after[:end], "\x00")
	}
	return family.String(), ""
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return strings.TrimSpace(s)
}

// prepareEnvironment sets the variables that must be there before UCX or libfabric is
// loaded, where the user has not.
func prepareEnvironment(lookup func(string) (string, bool), set func(k, v string) error) error {
	monitor := "userfaultfd"
	if b, err := os.ReadFile("/proc/sys/vm/unprivileged_userfaultfd"); os.Geteuid() != 0 && (err != nil || strings.TrimSpace(string(b)) != "1") {
		monitor = "disabled"
	}
	var errs []error
	for _, v := range []struct{ name, value string }{
		{"UCX_ERROR_SIGNALS", ""},
		{"UCX_HANDLE_ERRORS", "none"},
		// libfabric's default monitor patches libc's munmap and madvise, which the Go
		// runtime does not call; the kernel's userfaultfd sees every unmapping.
		{"FI_MR_CACHE_MONITOR", monitor},
	} {
		if _, ok := lookup(v.name); !ok {
			errs = append(errs, set(v.name, v.value))
		}
	}
	return errors.Join(errs...)
}
