package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What a user puts in the place of the state is gone on from, and not lost before this run saves.
func TestFileInPlaceOfTheStateIsGoneOnFrom(t *testing.T) {
	for name, put := range map[string]func(file, link string) error{
		"moved": os.Rename,
		"linked": func(file, link string) error {
			return errors.Join(os.Remove(link), os.Symlink(file, link))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			link, backup := filepath.Join(dir, stateLink), filepath.Join(dir, "backup.safetensors")
			claimOf := func() claim { return newClaim(dir, owner{Token: rand.Text()}) }
			first, second := claimOf(), claimOf()
			if err := first.take(fits); err != nil {
				t.Fatal(err)
			}
			saveState(t, first, "2")
			if err := errors.Join(os.WriteFile(backup, []byte("1"), 0o644), put(backup, link)); err != nil {
				t.Fatal(err)
			}
			saveState(t, first, "3")
			if err := first.check(); err != nil { // it goes on saving, and leaves the user's file alone
				t.Error(err)
			}
			fileHolds(t, link, "1")
			if err := second.take(func() error { return errors.New("another batch") }); err == nil {
				t.Error("the claim did not fail")
			}
			fileHolds(t, link, "1")
			var read []byte
			if err := second.take(func() (err error) {
				read, err = os.ReadFile(second.state())
				return err
			}); err != nil || string(read) != "1" {
				t.Errorf("read %q: %v", read, err)
			}
			if target, err := os.Readlink(link); err != nil || target != second.own.State {
				t.Errorf("the link is to %q: %v", target, err)
			}
			fileHolds(t, link, "1") // until this run saves
			saveState(t, second, "4")
			if err := second.check(); err != nil {
				t.Error(err)
			}
			fileHolds(t, link, "4")
			third := claimOf()
			if err := third.take(fits); err != nil {
				t.Fatal(err)
			}
			fileHolds(t, third.state(), "4") // it was for one run
			want := []string{ownerFile, third.own.State, stateLink}
			if name == "linked" {
				fileHolds(t, backup, "1")
				want = append([]string{filepath.Base(backup)}, want...)
			}
			if got := filesIn(t, dir); !slices.Equal(got, want) {
				t.Errorf("left: %q, want %q", got, want)
			}
		})
	}
}

// A file that comes while the run reads another is left for the next one.
func TestFileThatComesLateStays(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, stateLink)
	c := newClaim(dir, owner{Token: rand.Text()})
	reads := 0
	if err := c.take(func() error {
		if reads++; reads == 2 {
			return errors.Join(os.WriteFile(link+".new", []byte("2"), 0o644), os.Rename(link+".new", link))
		}
		return os.WriteFile(link, []byte("1"), 0o644)
	}); err != nil || reads != 2 {
		t.Errorf("read %d times: %v", reads, err)
	}
	fileHolds(t, c.state(), "1")
	fileHolds(t, link, "2")
}

// TestTrainGoesOnFromABackup: putting an earlier state back is undoing what came after it.
func TestTrainGoesOnFromABackup(t *testing.T) {
	dir := t.TempDir()
	link, backup := filepath.Join(dir, stateLink), filepath.Join(dir, "backup.safetensors")
	train := func(epochs, resumed int) {
		t.Helper()
		r := resultOf(t, fisterra(t, "train", "--peer-timeout", "1m", "--json", "--ps", "0", "--workers", "2", "--epochs", fmt.Sprint(epochs), "--checkpoint", dir, "--checkpoint-every", "10"))
		if r.Resumed != int64(resumed) {
			t.Errorf("%d epochs began with step %d, want %d", epochs, r.Resumed, resumed)
		}
	}
	train(1, 0)
	first := savedStep(t, dir)
	text, err := os.ReadFile(link)
	if err == nil {
		err = os.WriteFile(backup, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	train(2, first)
	if later := savedStep(t, dir); later <= first {
		t.Fatalf("saved step %d and then %d", first, later)
	}
	if err := os.Rename(backup, link); err != nil {
		t.Fatal(err)
	}
	train(2, first)
}
