package lab

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const ownerHelper = "FISTERRA_LAB_OWNER_HELPER"

// A test binary that is killed cannot clean up: its cluster and its binary's directory must
// go all the same.
func TestClusterGoesWithItsOwner(t *testing.T) {
	if os.Getenv(ownerHelper) != "" {
		s := Cluster(t, 1, 1)
		dir, alive, err := processDir()
		if err != nil {
			t.Fatal(err)
		}
		defer alive.Close() // kept until then, like the process
		os.Stdout.WriteString("here: " + s.Dir + " " + dir + "\n")
		select {} // until killed
	}
	Cluster(t, 1, 1) // skips where there is no Slurm
	helper := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClusterGoesWithItsOwner$", "-test.v")
	helper.Env = append(os.Environ(), ownerHelper+"=1")
	out, err := helper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	var dirs []string
	lines := bufio.NewScanner(out)
	for dirs == nil && lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "here: "); ok {
			dirs = strings.Fields(rest)
		}
	}
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = helper.Wait() // killed, as told
	if len(dirs) != 2 {
		t.Fatalf("the helper named %v, want its two directories", dirs)
	}
	deadline := time.After(2 * time.Minute)
	for tick := time.Tick(50 * time.Millisecond); ; {
		left := 0
		for _, dir := range dirs {
			if _, err := os.Stat(dir); err == nil {
				left++
			}
		}
		if left == 0 {
			return
		}
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("2 minutes after the kill: %d of %v are still there", left, dirs)
		}
	}
}
