package wholefile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// Who may read a new file is said by the umask.
func TestModeIsByTheUmask(t *testing.T) {
	for mask, want := range map[int]fs.FileMode{0o077: 0o600, 0o022: 0o644, 0o002: 0o644} {
		file := filepath.Join(t.TempDir(), "model")
		before := syscall.Umask(mask)
		err := Replace(file, text("x"))
		syscall.Umask(before)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != want {
			t.Errorf("umask %03o: %v, %v; want %v", mask, info.Mode(), err, want)
		}
	}
}

// What was there stays until the new file is whole, and nothing is left of one that is not. A link stays a link.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	want := func(s string) {
		t.Helper()
		if b, err := os.ReadFile(file); err != nil || string(b) != s {
			t.Errorf("%q, %v; want %q", b, err, s)
		}
	}
	if err := Replace(file, text("old")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := Replace(file, func(w io.Writer) error { return errors.Join(text("half")(w), broken) }); !errors.Is(err, broken) {
		t.Error(err)
	}
	want("old")
	if err := Replace(link, func(w io.Writer) error { want("old"); return text("new")(w) }); err != nil {
		t.Error(err)
	}
	want("new")
	if to, err := os.Readlink(link); err != nil || to != "file" {
		t.Errorf("the link leads to %q: %v", to, err)
	}
	if there, err := os.ReadDir(dir); err != nil || len(there) != 2 {
		t.Errorf("%v, %v", there, err)
	}
}

// Whoever is killed before there is anything to write leaves nothing.
func TestNothingIsThereBeforeTheContent(t *testing.T) {
	dir := t.TempDir()
	files := func() int {
		t.Helper()
		there, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(there)
	}
	err := Replace(filepath.Join(dir, "file"), func(w io.Writer) error {
		if n := files(); n != 0 {
			t.Errorf("%d files before the first byte", n)
		}
		return text("x")(w)
	})
	if err != nil || files() != 1 {
		t.Errorf("%v, %d files", err, files())
	}
	if err := Replace(filepath.Join(dir, "empty"), func(io.Writer) error { return nil }); err != nil || files() != 2 {
		t.Errorf("%v, %d files", err, files())
	}
}

// A link that leads to nothing yet stays a link, however long the way.
func TestReplaceWhatALinkWillLeadTo(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.MkdirAll(filepath.Join(sub, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{
		filepath.Join(dir, "first"):  "short/../second",
		filepath.Join(dir, "short"):  "sub/below", // "short/.." is sub, not dir
		filepath.Join(sub, "second"): filepath.Join(sub, "third"),
		filepath.Join(sub, "third"):  "../sub/file",
	} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := Replace(filepath.Join(dir, "first"), text("x")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(sub, "file")); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "first")); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("%v, %v", info, err)
	}
	round := filepath.Join(dir, "round")
	if err := os.Symlink("round", round); err != nil {
		t.Fatal(err)
	}
	if err := Replace(round, text("x")); err == nil {
		t.Error("a link to itself is replaced")
	}
}

// A file that cannot be written is known before there is anything to write, and what is no file is not replaced.
func TestReplaceWhatIsNoFile(t *testing.T) {
	never := func(io.Writer) error { t.Error("called"); return nil }
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "no", "file")} {
		if err := Replace(path, never); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := Replace(pipe, text("there")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 8)
	if n, err := reader.Read(b); err != nil || string(b[:n]) != "there" {
		t.Errorf("%q, %v", b[:n], err)
	}
}
