package mpi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
		if err := f.create(secret); err != nil {
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
