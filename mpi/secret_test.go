package mpi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

func TestSecretFile(t *testing.T) {
	dir := t.TempDir()
	f := newSecretFile(dir, &origin{job: "12.0", restart: 1})
	if filepath.Base(f.path) != "fisterra-12.0.1.key" {
		t.Error(f.path)
	}
	if _, err := f.read(); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("before: %v", err)
	}
	secret := wire.NewSecret()
	for range 2 { // a left-over of the same name is replaced
		if err := f.create(secret, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := f.read(); err != nil || !slices.Equal(got, secret) {
		t.Fatalf("%x, %v", got, err)
	}
	info, _ := os.Stat(f.path)
	if info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	os.Chmod(f.path, 0o640)
	if _, err := f.read(); err == nil || !strings.Contains(err.Error(), "must be 0600") {
		t.Errorf("mode: %v", err)
	}
	f.remove()
	os.Symlink("/etc/hostname", f.path)
	if _, err := f.read(); err == nil {
		t.Error("a symbolic link was followed")
	}
	f.remove()
	os.WriteFile(f.path, secret[:5], 0o600)
	if _, err := f.read(); err == nil {
		t.Error("a short file was taken")
	}
	if os.Getuid() == 0 {
		os.WriteFile(f.path, secret, 0o600)
		os.Chown(f.path, 65534, 65534)
		if _, err := f.read(); err == nil || !strings.Contains(err.Error(), "belongs to uid 65534") {
			t.Errorf("owner: %v", err)
		}
	}
}

// TestLeftKeyFiles: what killed jobs have left goes a day after it can have been of use, and nothing else does.
func TestLeftKeyFiles(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	file := func(name string, mode os.FileMode, sizeBytes int, until time.Duration) {
		path := filepath.Join(dir, name)
		err := os.WriteFile(path, make([]byte, sizeBytes), mode)
		if err = errors.Join(err, os.Chtimes(path, now.Add(until), now.Add(until))); err != nil {
			t.Fatal(err)
		}
	}
	const old = -25 * time.Hour
	for name, until := range map[string]time.Duration{"left.0.0": old, "live.0.0": time.Hour, "late.0.0": -23 * time.Hour} {
		if err := (secretFile{filepath.Join(dir, "fisterra-"+name+".key")}).create(wire.NewSecret(), now.Add(until)); err != nil {
			t.Fatal(err)
		}
	}
	file(".fisterra-begun.0.0.key.123", 0o600, 0, old)
	file(".fisterra-beginning.0.0.key.123", 0o600, 0, 0)
	file("fisterra-long.key", 0o600, wire.SecretBytes+1, old)
	file("fisterra-open.key", 0o644, wire.SecretBytes, old)
	file("other.key", 0o600, wire.SecretBytes, old)
	want := []string{".fisterra-beginning.0.0.key.123", "fisterra-late.0.0.key", "fisterra-live.0.0.key", "fisterra-long.key", "fisterra-open.key", "other.key"}
	if os.Getuid() == 0 {
		file("fisterra-theirs.key", 0o600, wire.SecretBytes, old)
		if err := os.Lchown(filepath.Join(dir, "fisterra-theirs.key"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		want = slices.Insert(want, len(want)-1, "fisterra-theirs.key")
	}
	newSecretFile(dir, &origin{job: "12.0"}).sweep(now)
	entries, err := os.ReadDir(dir)
	var there []string
	for _, e := range entries {
		there = append(there, e.Name())
	}
	if err != nil || !slices.Equal(there, want) {
		t.Errorf("there are %q, %v, want %q", there, err, want)
	}
}
