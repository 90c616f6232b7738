package shm

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func TestHeadroom(t *testing.T) {
	const meminfo = "MemTotal: 100 kB\nMemAvailable:     5000 kB\n"
	tests := []struct {
		name  string
		files map[string]string
		free  int64
		where string
	}{
		{"nothing known", nil, math.MaxInt64, "anywhere"},
		{"machine", map[string]string{"proc/meminfo": meminfo}, 5000 << 10, "machine"},
		{"unlimited group", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "7\n"}, 5000 << 10, "machine"},
		{"limit of a parent, less what is used, cache aside", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/job/step\n",
			"sys/fs/cgroup/job/memory.max": "1000\n", "sys/fs/cgroup/job/memory.current": "900\n",
			"sys/fs/cgroup/job/memory.stat": "anon 3\ninactive_file 50\nactive_file 20\n"}, 170, "/job, limited to 1000"},
		{"over the limit", map[string]string{"proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "1100\n"}, 0, "limited to 1000"},
		{"version 1", map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "5:cpu:/x\n4:memory:/slurm/job\n",
			"sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes": "2000", "sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes": "500"},
			1500, "/slurm/job"},
	}
	for _, test := range tests {
		files := fstest.MapFS{}
		for name, text := range test.files {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
		free, where := headroom(files)
		if free != test.free || !strings.Contains(where, test.where) {
			t.Errorf("%s: %d bytes %s, want %d %s", test.name, free, where, test.free, test.where)
		}
	}
}

func TestAfford(t *testing.T) {
	if err := afford(1 << 20); err != nil {
		t.Error(err)
	}
	if err := afford(1 << 60); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("2^60 bytes: %v", err)
	}
}
