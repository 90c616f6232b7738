package lab

import (
	"os/exec"
	"testing"
	"time"
)

func TestAwaitEnd(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if AwaitEnd(cmd.Process.Pid, time.Millisecond) == nil {
		t.Error("a process that runs has ended")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := AwaitEnd(cmd.Process.Pid, time.Minute); err != nil { // it has not been waited for
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	if err := AwaitEnd(cmd.Process.Pid, time.Millisecond); err != nil {
		t.Error(err)
	}
}
