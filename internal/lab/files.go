package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// AwaitFiles blocks until ok, which reads files of dir or below it, or ctx ends. It looks at
// once, and again after whatever changes there.
func AwaitFiles(ctx context.Context, dir string, ok func() bool) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify_init1: %w", err)
	}
	changes := os.NewFile(uintptr(fd), "inotify")
	defer changes.Close()
	defer context.AfterFunc(ctx, func() { _ = changes.SetReadDeadline(time.Now()) })()
	events := make([]byte, 64<<10)
	for {
		// Watch before looking, so that no change is missed, in directories made since either. Watching a directory again
		// changes nothing.
		if err := watchTree(fd, dir); err != nil {
			return err
		}
		if ok() {
			return nil
		}
		if _, err := changes.Read(events); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("waiting for changes in %s: %w", dir, err)
		}
	}
}

func watchTree(inotify int, root string) error {
	const changes = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_, err = unix.InotifyAddWatch(inotify, path, changes|unix.IN_ONLYDIR)
		}
		if path != root && errors.Is(err, fs.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil {
			return fmt.Errorf("watching %s: %w", path, err)
		}
		return nil
	})
}
