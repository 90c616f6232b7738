package lab

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestNetJoinsHostsAndPullsCables(t *testing.T) {
	h := Net(t, 3)
	ctx := t.Context()
	for i := range 3 {
		r := h.Command(ctx, i, "sh", "-c", "hostname; ip -4 -o addr show eth0").Run()
		if r.Code != 0 || !strings.HasPrefix(r.Stdout, h.Name(i)+"\n") || !strings.Contains(r.Stdout, h.Address(i)+"/24") {
			t.Errorf("host %d: %v", i, r)
		}
	}
	// No answer at all is silence; a refusal by a port where nobody listens is an answer.
	answers := func() bool {
		r := h.Command(ctx, 0, "timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/"+h.Address(1)+"/9").Run()
		return r.Code == 1 && strings.Contains(r.Stderr, "refused")
	}
	answersAgain := func() bool { // what a busy machine takes a second for, it does the next time
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			if answers() {
				return true
			}
		}
		return false
	}
	if !answersAgain() {
		t.Error("host 1 does not answer host 0")
	}
	h.Unplug(1)
	if answers() {
		t.Error("host 1 answers without a cable")
	}
	h.Plug(1)
	if !answersAgain() {
		t.Error("host 1 does not answer after its cable was put in again")
	}
}

func TestCommandKillsItsWholeGroup(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	text := func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "pid"))
		return strings.TrimSpace(string(text))
	}
	started := make(chan error, 1)
	go func() {
		limited, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		started <- AwaitFiles(limited, dir, func() bool { return text() != "" })
		cancel()
	}()
	r := Command(ctx, t, "sh", "-c", `sleep 1000 & echo $! >"$0/new" && mv "$0/new" "$0/pid"; wait`, dir).Run()
	if err := <-started; err != nil || r.Code != 124 {
		t.Fatalf("%v: %v", err, r)
	}
	grandchild, err := strconv.Atoi(text())
	if err == nil {
		err = AwaitEnd(grandchild, time.Minute)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestRunReportsCodesAndSignals(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -TERM $$": 128 + 15} {
		if r := Command(t.Context(), t, "sh", "-c", script).Run(); r.Code != want || r.Err != nil {
			t.Errorf("%s: %v, want %d", script, r, want)
		}
	}
	if r := Command(t.Context(), t, "/nonexistent").Run(); r.Code != -1 || r.Err == nil {
		t.Errorf("a missing program: %v", r)
	}
}
