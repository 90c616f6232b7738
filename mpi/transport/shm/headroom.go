package shm

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel does not refuse shared memory that it does not have: it kills a process to get it, of this job or another. So a
// rank looks at what is free before it asks.

// afford returns an error if nBytes more of shared memory would exceed what
// the machine has free, or what the job's control group may use.
func afford(nBytes int) error {
	free, where := headroom(os.DirFS("/").(readFS))
	if int64(nBytes) > free {
		return fmt.Errorf("%d bytes of shared memory, but only %d are free %s: %w", nBytes, free, where, unix.ENOMEM)
	}
	return nil
}

// readFS is the file system that headroom reads.
type readFS interface {
	ReadFile(name string) ([]byte, error)
}

// headroom is how many bytes may still be used, and which limit that is.
// Where nothing can be read there is no limit.
func headroom(files readFS) (free int64, where string) {
	free, where = math.MaxInt64, "anywhere"
	if kib, ok := field(files, "proc/meminfo", "MemAvailable:"); ok {
		free, where = kib<<10, "on this machine"
	}
	groups, err := files.ReadFile("proc/self/cgroup")
	if err != nil {
		return free, where
	}
	for line := range strings.Lines(string(groups)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		var root, limit, usage, total string
		switch {
		case id == "0" && controllers == "":
			root, limit, usage, total = "sys/fs/cgroup", "memory.max", "memory.current", ""
		case strings.Contains(","+controllers+",", ",memory,"):
			root, limit, usage, total = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
		default:
			continue
		}
		// In a container the path may be the host's: then only the root is there.
		for dir := path.Join(root, group); len(dir) >= len(root); dir = path.Dir(dir) {
			most, ok := number(files, path.Join(dir, limit))
			used, known := number(files, path.Join(dir, usage))
			if !ok || !known {
				continue // "max": no limit here
			}
			// Cached files count as free: the kernel gives their memory back, also that of files that are read again and
			// again.
			inactive, _ := field(files, path.Join(dir, "memory.stat"), total+"inactive_file")
			active, _ := field(files, path.Join(dir, "memory.stat"), total+"active_file")
			if left := max(0, most-used+inactive+active); left < free {
				free, where = left, fmt.Sprintf("in the control group %s, limited to %d", strings.TrimPrefix(dir, root), most)
			}
		}
	}
	return free, where
}

// number reads a file that holds one.
func number(files readFS, name string) (int64, bool) {
	b, err := files.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}

// field reads the number behind a word at the start of a line.
func field(files readFS, name, word string) (int64, bool) {
	b, err := files.ReadFile(name)
	if err != nil {
		return 0, false
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) >= 2 && f[0] == word {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
