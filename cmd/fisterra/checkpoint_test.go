package main

import (
	"os"
	"strings"
	"testing"
)

func TestCheckpointDirectoryHasOneOwner(t *testing.T) {
	dir := t.TempDir() + "/state"
	claimed := func(job, restart int) claim {
		t.Helper()
		c, err := claimDirectory(dir, owner{Job: job, Restart: restart, Host: "c7101", PID: 7, Token: strings.Repeat("x", restart+1)})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	old := claimed(5, 0)
	if err := old.check(); err != nil {
		t.Error(err)
	}
	requeued := claimed(5, 1)
	if err := requeued.check(); err != nil {
		t.Error(err)
	}
	if err := old.check(); err == nil || !strings.Contains(err.Error(), "taken over by job 5, restart 1, process 7 on c7101") {
		t.Errorf("the old incarnation may still save: %v", err)
	}
	if _, err := claimDirectory(dir, owner{Job: 5, Token: "late"}); err == nil || !strings.Contains(err.Error(), "later incarnation") {
		t.Errorf("an old incarnation that begins late: %v", err)
	}
	claimed(6, 0) // another job is another matter
	if err := requeued.check(); err == nil {
		t.Error("two jobs save into one directory")
	}
	if err := (claim{}).check(); err != nil {
		t.Error(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("left: %v %v", files, err)
	}
}
