package native

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// What Go sets in its environment before UCX and libfabric are loaded is what they read: they
// ask the C library, which has an environment of its own. How it gets there depends on who
// has started C in this process, so it is tried in this binary and in one built without cgo, as
// users have it.
func TestEnvironmentReachesC(t *testing.T) {
	dir := t.TempDir()
	without := sync.OnceValues(func() (string, error) {
		binary := filepath.Join(dir, "native.test")
		build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w\n%s", build.Args, err, out)
		}
		return binary, nil
	})
	each(t, func(t *testing.T, l launch) {
		l.ranks(t, 1, "environment", "UCX_HANDLE_ERRORS=bt")
		var err error
		if l.binary, err = without(); err != nil {
			t.Fatal(err)
		}
		l.ranks(t, 1, "environment", "UCX_HANDLE_ERRORS=bt")
	})
}

func environment(context.Context, *World) error {
	libc, err := clib.Open("libc.so.6")
	if err != nil {
		return err
	}
	getenv := libc.Sym("getenv")
	if getenv == 0 {
		return fmt.Errorf("%s has no getenv", libc.Path())
	}
	for name, want := range map[string][]string{
		"UCX_HANDLE_ERRORS":   {"bt"}, // the user's own
		"UCX_ERROR_SIGNALS":   {""},
		"FI_MR_CACHE_MONITOR": {"userfaultfd", "disabled"},
	} {
		word := clib.Bytes(name)
		p := clib.Call(getenv, uintptr(unsafe.Pointer(&word[0])))
		if p == 0 {
			return fmt.Errorf("C knows no %s, Go has %q", name, os.Getenv(name))
		}
		if got := clib.String(p, 100); got != want[0] && got != want[len(want)-1] {
			return fmt.Errorf("C reads %s=%q, Go %q; want one of %q", name, got, os.Getenv(name), want)
		}
	}
	return nil
}
