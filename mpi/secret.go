package mpi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// Where the ranks of a job get their secret:
//
//   - Fisterra's launcher passes it by an inherited descriptor.
//   - Ranks that meet through a process manager reached by PMI_FD find it in the
//     key-value space, where position 0 has put it: only processes that inherited such a
//     descriptor can read it. (Tasks of srun --mpi=pmi2 meet so only where they need not, or cannot, agree
//     on a transport first: choice_agree.go.) PMI_PORT is a TCP port that answers anybody, so
//     it is not trusted with a secret.
//   - Else munge, where its socket answers: position 0 gives it to each rank
//     whose credential shows the same uid (secret_exchange.go).
//   - Else a file of mode 0600 in Config.SecretDir, which all nodes share.
//   - Else the space of a PMIx server, where there is one. Any process of its host can deceive it.
//   - Else there is none, and ranks refuse to run.

// inheritedSecret reads the launcher's descriptor. The descriptor is closed, and
// not passed on to children.
func inheritedSecret(fd int) ([]byte, error) {
	f, err := inherit(wire.EnvSecretFD, fd)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	secret, err := wire.ReadSecret(f)
	if err != nil {
		return nil, fmt.Errorf("%s is %d: %w (it can be read once in the life of a process)", wire.EnvSecretFD, fd, err)
	}
	return secret, nil
}

// secretFile is the job's key on a shared file system, while its ranks meet. The name is the
// job's, so that no other job and no other incarnation reads it.
type secretFile struct{ path string }

// keyLeft is how long after the end of its meeting's time a key file is certain to be a left-over: clocks of hosts differ.
const keyLeft = 24 * time.Hour

func newSecretFile(dir string, l *origin) secretFile {
	name := strings.ReplaceAll(l.identity(), string(filepath.Separator), "_")
	return secretFile{filepath.Join(dir, "fisterra-"+name+".key")}
}

// create writes the secret so that readers see all of it or none. The file's modification time is set to until, the end of
// the meeting's time, so that others can tell when nobody needs the file any more.
func (f secretFile) create(secret []byte, until time.Time) error {
	dir, name := filepath.Split(f.path)
	temp, err := os.CreateTemp(dir, "."+name+".*") // mode 0600, new
	if err != nil {
		return fmt.Errorf("the job's key file: %w", err)
	}
	_, err = temp.Write(secret)
	if err == nil {
		err = temp.Sync()
	}
	if cerr := temp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Chtimes(temp.Name(), until, until)
	}
	if err == nil {
		err = os.Rename(temp.Name(), f.path)
	}
	if err != nil {
		os.Remove(temp.Name())
		return fmt.Errorf("the job's key file: %w", err)
	}
	return nil
}

// read takes the secret from a file that is this user's alone.
func (f secretFile) read() ([]byte, error) {
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", f.path)
	case int(owner) != os.Getuid():
		return nil, fmt.Errorf("%s belongs to uid %d, must belong to uid %d", f.path, owner, os.Getuid())
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s has mode %#o, must be 0600", f.path, info.Mode().Perm())
	}
	secret := make([]byte, wire.SecretBytes)
	if _, err := io.ReadFull(file, secret); err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	return secret, nil
}

func (f secretFile) remove() { os.Remove(f.path) }

// sweep removes the key files that are left in the directory by jobs of this user whose position 0 was killed while the
// ranks met.
func (f secretFile) sweep(now time.Time) {
	dir := filepath.Dir(f.path)
	entries, _ := os.ReadDir(dir) // where they cannot be listed they stay
	for _, entry := range entries {
		whole, _ := filepath.Match("fisterra-*.key", entry.Name())
		begun, _ := filepath.Match(".fisterra-*.key.*", entry.Name())
		if !whole && !begun {
			continue
		}
		if info, err := entry.Info(); err == nil && leftOver(info, now) {
			os.Remove(filepath.Join(dir, entry.Name()))
		}
	}
}

// leftOver reports whether a file, which has the name of a key file, is one of this user's that nobody needs any more.
func leftOver(info fs.FileInfo, now time.Time) bool {
	return info.Mode() == 0o600 && info.Size() <= wire.SecretBytes &&
		int(info.Sys().(*syscall.Stat_t).Uid) == os.Getuid() && now.Sub(info.ModTime()) > keyLeft
}

// keyring is how this rank comes by the secret where nobody has handed it over.
type keyring struct {
	exchange *exchange   // by munge; nil if it does not answer
	file     *secretFile // by file; nil if munge answers
	how      string      // for the start-up lines
}

// findKeyring prefers munge, since it leaves nothing on a disk.
func findKeyring(ctx context.Context, cfg *Config, l *origin, lookup func(string) (string, bool)) (*keyring, error) {
	m, err := findMunge(ctx, lookup)
	if err == nil {
		return &keyring{exchange: &exchange{munge: m, job: l.identity()}, how: "munge at " + m.socket}, nil
	}
	if cfg.SecretDir == "" {
		return nil, fmt.Errorf("mpi: %w: the ranks have no way to recognise each other: %w; "+
			"name a directory on a file system that all nodes share (Config.SecretDir, --secret-dir)", ErrLauncher, err)
	}
	info, serr := os.Stat(cfg.SecretDir)
	switch {
	case errors.Is(serr, fs.ErrNotExist):
		return nil, fmt.Errorf("mpi: %w: secret directory %q does not exist on this host", ErrLauncher, cfg.SecretDir)
	case serr != nil:
		return nil, fmt.Errorf("mpi: %w: secret directory: %w", ErrLauncher, serr)
	case !info.IsDir():
		return nil, fmt.Errorf("mpi: %w: secret directory %q is not a directory", ErrLauncher, cfg.SecretDir)
	}
	file := newSecretFile(cfg.SecretDir, l)
	return &keyring{file: &file, how: "key file in " + cfg.SecretDir}, nil
}
