package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Each look of one that waits makes the next change: in the directory, in one that is made
// meanwhile, by appending, by renaming, also to another directory.
func TestAwaitFilesSeesChanges(t *testing.T) {
	dir := t.TempDir()
	below, outside := filepath.Join(dir, "a", "b"), filepath.Join(t.TempDir(), "three")
	write := func(path, text string) func() error {
		return func() error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
			if err == nil {
				_, err = f.WriteString(text)
				err = errors.Join(err, f.Close())
			}
			return err
		}
	}
	steps := []func() error{
		write(filepath.Join(dir, "one"), "1"),
		func() error { return os.MkdirAll(below, 0o700) },
		write(filepath.Join(below, "two"), "2"),
		write(filepath.Join(below, "two"), "3"),
		func() error { return os.Rename(filepath.Join(dir, "one"), filepath.Join(below, "three")) },
		func() error { return os.Rename(filepath.Join(below, "three"), outside) },
		func() error { return os.RemoveAll(below) },
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, step := range steps {
		looked := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			<-looked
			done <- step()
		}()
		looks := 0
		err := AwaitFiles(ctx, dir, func() bool {
			if looks++; looks == 1 {
				close(looked)
			}
			return looks > 1
		})
		if err := errors.Join(err, <-done); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	short, stop := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	err := AwaitFiles(short, dir, func() bool { stop(why); return false })
	if !errors.Is(err, why) {
		t.Errorf("with a context that ended: %v", err)
	}
	if err := AwaitFiles(ctx, filepath.Join(dir, "absent"), func() bool { return true }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
}
