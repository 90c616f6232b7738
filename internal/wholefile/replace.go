// Package wholefile writes files that are there as a whole or not at all.
package wholefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Replace writes a new file beside path, brings it to the disk and renames it over path, or over what path links to: a file that was
// there stays until then, and for good if write fails, whose error is returned as it is. That a new file can be made there is
// known before write is called, which may take long to find out what it writes; the file is made at the first byte. What is no
// regular file, such as a pipe, is written as it is.
func Replace(path string, write func(io.Writer) error) (err error) {
	switch info, err := os.Stat(path); {
	case err == nil && !info.Mode().IsRegular():
		return writeThrough(path, write)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if path, err = followLinks(path); err != nil {
		return err
	}
	if err := Probe(path); err != nil {
		return err
	}
	fresh := &newFile{path: path}
	defer func() {
		if err != nil {
			fresh.discard()
		}
	}()
	if err := write(fresh); err != nil {
		return err
	}
	if err := fresh.make(); err != nil { // nothing was written
		return err
	}
	if err := fresh.file.Sync(); err != nil {
		return err
	}
	if err := fresh.file.Close(); err != nil {
		return err
	}
	if err := os.Rename(fresh.file.Name(), path); err != nil {
		return err
	}
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		dir.Sync()
		dir.Close()
	}
	return nil
}

// followLinks is where path leads, whether or not there is a file.
func followLinks(path string) (string, error) {
	for {
		dir, name := filepath.Split(path)
		to, err := os.Readlink(path)
		switch {
		case err != nil: // no link
			if dir, err = filepath.EvalSymlinks(dir + "."); err != nil {
				return "", err
			}
			return filepath.Join(dir, name), nil
		case filepath.IsAbs(to):
			path = to
		default:
			path = dir + to // not cleaned: what ".." is the links before it say
		}
	}
}

// newFile is made beside path when it is written: whoever is killed before leaves nothing.
type newFile struct {
	path string
	file *os.File
}

func (n *newFile) Write(b []byte) (int, error) {
	if err := n.make(); err != nil {
		return 0, err
	}
	return n.file.Write(b)
}

func (n *newFile) make() (err error) {
	if n.file == nil {
		n.file, err = createBeside(n.path)
	}
	return err
}

func (n *newFile) discard() {
	if n.file != nil {
		n.file.Close()
		os.Remove(n.file.Name())
	}
}

// Probe finds out whether a file can be made beside path.
func Probe(path string) error {
	f, err := createBeside(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func writeThrough(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// createBeside makes a hidden file beside path under a number that no other has. Its mode is by the process's umask, which
// os.CreateTemp does not ask.
func createBeside(path string) (*os.File, error) {
	for {
		name := fmt.Sprintf(".%s.%d", filepath.Base(path), rand.Uint32())
		f, err := os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}
