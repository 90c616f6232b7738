package mpitest

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// LargeVariable names the environment variable that turns on the check of messages beyond 4 GiB, and the
// full sizes of simulations. make soak sets it. Other targets and continuous integration do not: the check takes
// 9 GiB of memory, and on a busy machine a minute for every transport.
const LargeVariable = "FISTERRA_LARGE"

func wantLarge() bool { return os.Getenv(LargeVariable) != "" }

// whyNotLarge says why there is no check of messages beyond 4 GiB; "": there is.
func whyNotLarge() string {
	const needed = 10 << 20 // kB
	if !wantLarge() {
		return fmt.Sprintf("messages of more than 4 GiB need 9 GiB of memory: set %s=1", LargeVariable)
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return err.Error()
	}
	_, rest, _ := strings.Cut(string(b), "MemAvailable:")
	var available int
	if _, err := fmt.Sscan(rest, &available); err != nil {
		return fmt.Sprintf("/proc/meminfo: MemAvailable: %v", err)
	}
	if available < needed {
		return fmt.Sprintf("%s is set, and of memory %d kB are available, %d are needed", LargeVariable, available, needed)
	}
	return ""
}

// patience is how long the ranks of a test may take, on any machine.
func patience() time.Duration {
	if wantLarge() {
		return 5 * time.Minute
	}
	return 3 * time.Minute
}
