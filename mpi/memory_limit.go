package mpi

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// Shared memory that the machine does not have is refused before it is asked
// for: fallocate on a memfd has no limit of its own, and goes on until the kernel kills
// processes to find room.

// checkRoom reports whether so many bytes may be had now.
func checkRoom(nBytes int) error {
	have := availableBytes("/proc/meminfo", "/sys/fs/cgroup")
	if nBytes > have {
		return fmt.Errorf("%d bytes of shared memory: only %d are available", nBytes, have)
	}
	return nil
}

// availableBytes is what the machine, and the job's memory cgroup, have left.
// What cannot be read sets no limit.
func availableBytes(meminfo, cgroup string) int {
	have := math.MaxInt
	if f, err := os.Open(meminfo); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if rest, ok := strings.CutPrefix(s.Text(), "MemAvailable:"); ok {
				if n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB")); err == nil {
					have = n << 10
				}
			}
		}
	}
	limit, ok := readNumber(cgroup + "/memory.max")
	used, ok2 := readNumber(cgroup + "/memory.current")
	if ok && ok2 {
		have = min(have, max(0, limit-used))
	}
	return have
}

func readNumber(path string) (int, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return n, err == nil // "max" is no number: no limit
}
