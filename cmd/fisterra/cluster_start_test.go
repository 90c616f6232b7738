package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// place is where a task sits and what it is, as a line of fisterra info says it.
type place struct {
	rank, position int
	role           string
	host           string
}

var infoLine = regexp.MustCompile(`(?m)^(\d+) +(\d+) +(\w+ \d+) +(\S+) +(\w+) `)

// TestClusterStart trains under every way that srun starts and places tasks. Rank
// and position differ under most distributions; roles go by position, node by node.
func TestClusterStart(t *testing.T) {
	s := onCluster(t)
	hostfile := filepath.Join(s.Dir, "hostfile")
	if err := os.WriteFile(hostfile, []byte(strings.Join([]string{s.Nodes[2], s.Nodes[0], s.Nodes[2], s.Nodes[1], s.Nodes[0]}, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	n := func(counts ...int) []int { return counts }
	for _, c := range []struct {
		name, srun string
		tasks      []int // of each node, in the order of the node list
		ranks      []int // by position; nil: the same
	}{
		{"none block", "srun --mpi=none -N4 --ntasks-per-node=2 -m block", n(2, 2, 2, 2), nil},
		{"none cyclic", "srun --mpi=none -N4 --ntasks-per-node=2 -m cyclic", n(2, 2, 2, 2), []int{0, 4, 1, 5, 2, 6, 3, 7}},
		{"pmi2 plane", "srun --mpi=pmi2 -N2 -n8 -m plane=2", n(4, 4), []int{0, 1, 4, 5, 2, 3, 6, 7}},
		{"pmi2 cyclic", "srun --mpi=pmi2 -N2 --ntasks-per-node=2 -m cyclic", n(2, 2), []int{0, 2, 1, 3}},
		{"pmix", "srun --mpi=pmix -N3 -n6 --ntasks-per-node=2", n(2, 2, 2), nil},
		{"none arbitrary", "env SLURM_HOSTFILE=" + hostfile + " srun --mpi=none -n5 -m arbitrary", n(2, 1, 2), []int{1, 4, 3, 0, 2}},
		{"uneven", "srun -N3 -n6 -m block", n(4, 1, 1), nil},
		{"heterogeneous", "salloc -N1 -n1 : -N1 -n2 srun --het-group=0,1", n(1, 2), nil},
		{"heterogeneous, against the order of names", "salloc -w c7103 -N1 -n1 : -w c7101,c7102 -N2 -n3 srun --het-group=0,1", n(2, 1, 1), []int{1, 2, 3, 0}},
		{"heterogeneous step, likewise", "salloc -N2 --ntasks-per-node=2 -w c7101,c7102 srun -N1 -n1 -w c7102 : -N1 -n2 -w c7101", n(2, 1), []int{1, 2, 0}},
		{"one node of an allocation", "salloc -N3 --ntasks-per-node=2 srun -N1 -n3 --overcommit", n(3), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := within(t, longWait)
			r := s.Exec(ctx, words(c.srun, lab.Fisterra(t), "info")...)
			if r.Code != 0 {
				t.Fatal(r)
			}
			var places []place
			for _, m := range infoLine.FindAllStringSubmatch(r.Stdout, -1) {
				rank, _ := strconv.Atoi(m[1])
				position, _ := strconv.Atoi(m[2])
				places = append(places, place{rank, position, m[3], m[4]})
			}
			slices.SortFunc(places, func(a, b place) int { return a.position - b.position })
			// Which nodes is Slurm's choice: only their order counts.
			var tasks []int
			for i, p := range places {
				switch {
				case i > 0 && p.host == places[i-1].host:
					tasks[len(tasks)-1]++
				case i > 0 && p.host < places[i-1].host:
					t.Errorf("nodes out of order: %v", r)
					fallthrough
				default:
					tasks = append(tasks, 1)
				}
			}
			if !slices.Equal(tasks, c.tasks) {
				t.Fatalf("%d tasks on the nodes, want %d: %v", tasks, c.tasks, r)
			}
			for i, p := range places {
				role := fmt.Sprintf("worker %d", i-1)
				if i == 0 {
					role = "ps 0"
				}
				if p.position != i || p.role != role || c.ranks != nil && p.rank != c.ranks[i] {
					t.Errorf("position %d: %+v, want %s, ranks %v", i, p, role, c.ranks)
				}
			}
			x := resultOf(t, s.Exec(ctx, words(c.srun, lab.Fisterra(t), "train --json --epochs 1 --peer-timeout 1m")...))
			if x.Ranks != len(places) || x.PS != 1 || x.Workers != len(places)-1 || len(x.Lost) != 0 || x.TestAccuracy < 0.85 {
				t.Errorf("%+v", x)
			}
			want := "tcp" // between the chief, position 1, and the server, position 0
			if c.tasks[0] > 1 {
				want = "shm"
			}
			if x.Transport != want {
				t.Errorf("transport %s, want %s", x.Transport, want)
			}
		})
	}
	t.Run("batch shell", func(t *testing.T) {
		for _, args := range []string{"train", "info", "spec --ps 1 --workers 3"} {
			r := s.Exec(within(t, longWait), words("salloc -N1 -n4", lab.Fisterra(t), args)...)
			if r.Code != exitUsage || !strings.Contains(r.Stderr, "start it with srun") || strings.Count(r.Stderr, "fisterra:") != 1 {
				t.Errorf("%s: want exit 2 and one message: %v", args, r)
			}
		}
	})
}

// TestClusterSpec holds the addresses against the reference system's rules: the
// list of roles goes node by node, the k-th task of a node has the k-th reserved port,
// and with InfiniBand c7101 is 172.28.71.1, which its ib0 really has.
func TestClusterSpec(t *testing.T) {
	s := onCluster(t)
	roles := []string{"ps", "worker", "worker", "ps", "worker", "worker"}
	for _, c := range []struct{ name, srun, flags string }{
		{"infiniband", "-N3 --ntasks-per-node=2 --resv-ports=2 -m block", "--infiniband"},
		{"cyclic", "-N3 --ntasks-per-node=2 --resv-ports=2 -m cyclic", "--infiniband=on --address-rule cesga-ft2"},
		{"host names", "-N3 --ntasks-per-node=2 --resv-ports=2 -m cyclic", ""},
		{"off", "-N3 --ntasks-per-node=2 --resv-ports=2", "--infiniband=off --address-rule cesga-ft2"},
		{"uneven", "-N3 -n6 --resv-ports=4", "--infiniband"},
		{"interface", "-N3 --ntasks-per-node=2 --resv-ports=2 -m cyclic --mpi=pmi2", "--infiniband --address-rule ib*"},
		{"three ports for two tasks", "-N3 --ntasks-per-node=2 --resv-ports=3", "--infiniband"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A line per task: what Slurm says, and what spec makes of it.
			script := `echo "$SLURM_NODEID $SLURM_LOCALID $SLURM_PROCID $SLURM_STEP_RESV_PORTS $SLURM_STEP_NODELIST $(hostname) $(ip -4 -o addr show ib0 | awk '{sub("/.*","",$4); print $4}') $("$0" spec "$@" | tr -d "\n")"`
			r := s.Exec(within(t, longWait), words("srun", c.srun, "bash -c", []string{script}, lab.Fisterra(t), "--roles", strings.Join(roles, ","), c.flags)...)
			lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
			if r.Code != 0 || len(lines) != len(roles) {
				t.Fatal(r)
			}
			type task struct {
				node, local, rank int
				ports             []string
				host, ib          string
				spec              struct {
					Cluster struct{ PS, Worker []string }
					Task    struct {
						Type  string
						Index int
					}
					Rank, Position int
					Address        string
				}
			}
			var tasks []task
			for _, line := range lines {
				var x task
				f := strings.SplitN(line, " ", 8)
				if len(f) != 8 {
					t.Fatalf("%q", line)
				}
				x.node, _ = strconv.Atoi(f[0])
				x.local, _ = strconv.Atoi(f[1])
				x.rank, _ = strconv.Atoi(f[2])
				low, high, _ := strings.Cut(f[3], "-")
				first, _ := strconv.Atoi(low)
				last, _ := strconv.Atoi(high)
				for p := first; p <= last; p++ {
					x.ports = append(x.ports, fmt.Sprint(p))
				}
				x.host, x.ib = f[5], f[6]
				if err := json.Unmarshal([]byte(f[7]), &x.spec); err != nil {
					t.Fatalf("%v in %q", err, line)
				}
				tasks = append(tasks, x)
			}
			slices.SortFunc(tasks, func(a, b task) int { return 100*(a.node-b.node) + a.local - b.local })
			infiniband := strings.HasPrefix(c.flags, "--infiniband") && !strings.Contains(c.flags, "off")
			var ps, workers []string
			for i, x := range tasks {
				address := net.JoinHostPort(x.host, x.ports[x.local])
				if infiniband {
					address = net.JoinHostPort(x.ib, x.ports[x.local])
				}
				index := len(workers)
				if roles[i] == "ps" {
					index = len(ps)
					ps = append(ps, address)
				} else {
					workers = append(workers, address)
				}
				if g := x.spec; g.Task.Type != roles[i] || g.Task.Index != index || g.Address != address || g.Rank != x.rank || g.Position != i {
					t.Errorf("position %d: %+v, want %s %d at %s", i, g, roles[i], index, address)
				}
			}
			for i, x := range tasks {
				if !slices.Equal(x.spec.Cluster.PS, ps) || !slices.Equal(x.spec.Cluster.Worker, workers) {
					t.Errorf("position %d: cluster %v, want ps %v worker %v", i, x.spec.Cluster, ps, workers)
				}
			}
		})
	}
	ctx := within(t, 5*time.Minute) // these nodes may be busy with another test
	// Lists of addresses that are put together by hand can be permuted; only the host can tell.
	for list, code := range map[string]int{"172.28.71.1 172.28.71.2": 0, "172.28.71.2 172.28.71.1": exitUsage} {
		r := s.Exec(ctx, words("env", []string{"TFSERVER=" + list}, "srun -N2 -n2 -w", s.Nodes[0]+","+s.Nodes[1], lab.Fisterra(t), "spec --ps 1 --workers 1")...)
		if r.Code != code || code == 0 && strings.Count(r.Stdout, `"source":"tfserver"`) != 2 || code != 0 && !strings.Contains(r.Stderr, "not this host's own") {
			t.Errorf("TFSERVER=%q: want exit %d: %v", list, code, r)
		}
	}
	if r := s.Exec(ctx, words("srun -N2 --ntasks-per-node=2 --resv-ports=1", lab.Fisterra(t), "spec --ps 1 --workers 3")...); r.Code != exitUsage || !strings.Contains(r.Stderr, "1 reserved port(s) for 2 tasks") {
		t.Errorf("too few ports: %v", r)
	}
	if r := s.Exec(ctx, words("srun -N2 -n2", lab.Fisterra(t), "spec --ps 1 --workers 1 --address-rule hsn*")...); r.Code != exitUsage || !strings.Contains(r.Stderr, "hsn*") || !strings.Contains(r.Stderr, "no interface that is up fits") {
		t.Errorf("an interface that no host has: %v", r)
	}
	if r := s.Exec(ctx, words("srun -N2 -n4", lab.Fisterra(t), "spec --ps 1 --workers 4")...); r.Code != exitUsage || !strings.Contains(r.Stderr, "5") || !strings.Contains(r.Stderr, "4") {
		t.Errorf("roles and tasks that differ in number: %v", r)
	}
}

// TestClusterAddresses: --address-rule sends the training's messages over IPoIB,
// and without it they stay away from there.
func TestClusterAddresses(t *testing.T) {
	s := onCluster(t)
	sent := func(net string) int {
		r := s.On(t.Context(), 0, "cat", "/sys/class/net/"+net+"/statistics/tx_bytes")
		n, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
		if err != nil {
			t.Fatalf("%v: %v", err, r)
		}
		return n
	}
	for _, c := range []struct {
		flags string
		ib    bool
	}{
		{"--address-rule ib0", true},
		{"--address-rule cesga-ft2", true},
		{"--address-rule ib*", true},
		{"", false},
		{"--address-rule hostname", false},
		{"--infiniband=off --address-rule ib0", false},
	} {
		ib, eth := sent("ib0"), sent("eth0")
		x := resultOf(t, s.Exec(within(t, longWait), words("srun -N4 --ntasks-per-node=1", lab.Fisterra(t), "train --json --epochs 2 --peer-timeout 1m", c.flags)...))
		ib, eth = sent("ib0")-ib, sent("eth0")-eth
		if x.Transport != "tcp" || c.ib != (ib > eth) || max(ib, eth) < 1<<20 || min(ib, eth) > max(ib, eth)/4 {
			t.Errorf("%q: the server sent %d bytes over ib0 and %d over eth0; %+v", c.flags, ib, eth, x)
		}
	}
	r := s.Exec(within(t, longWait), words("srun -N2 -n2", lab.Fisterra(t), "train --address-rule ib7 --start-timeout 5s")...)
	if r.Code == 0 || !strings.Contains(r.Stderr, "ib7") || !strings.Contains(r.Stderr, "ib0") {
		t.Errorf("an interface that is not there: %v", r)
	}
	r = s.Exec(within(t, longWait), words("srun -N2 -n2", lab.Fisterra(t), "train --infiniband=on")...)
	if r.Code != exitAbsent || !strings.Contains(r.Stderr, "no device is usable") {
		t.Errorf("--infiniband=on without RDMA: %v", r)
	}
}

// TestClusterKeys: where munge does not answer, ranks recognise each other by a
// file, and refuse to run without one.
func TestClusterKeys(t *testing.T) {
	s := onCluster(t)
	s.HideMunge()
	// slurm.conf would lead to the socket that Slurm itself uses.
	const srun = "srun -N4 --ntasks-per-node=1 env -u SLURM_CONF"
	r := s.Exec(within(t, longWait), words(srun, lab.Fisterra(t), "train --epochs 1 --start-timeout 1h")...) // which nobody waits for
	if r.Code != exitUsage || !strings.Contains(r.Stderr, "--secret-dir") || !strings.Contains(r.Stderr, "munge") {
		t.Errorf("without munge and key file: %v", r)
	}
	keys := filepath.Join(s.Dir, "keys")
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	x := resultOf(t, s.Exec(within(t, longWait), words(srun, lab.Fisterra(t), "train --json --epochs 1 --peer-timeout 1m --secret-dir", keys)...))
	if x.Ranks != 4 || x.Transport != "tcp" {
		t.Errorf("%+v", x)
	}
	if left, err := os.ReadDir(keys); err != nil || len(left) != 0 {
		t.Errorf("key files are left: %v %v", left, err)
	}
	if r := s.Exec(within(t, longWait), words(srun, lab.Fisterra(t), "train --secret-dir", keys+"/none")...); r.Code != exitUsage || !strings.Contains(r.Stderr, keys+"/none") {
		t.Errorf("a directory that is not there: %v", r)
	}
	// A process manager hands the key over itself.
	if r := s.Exec(within(t, longWait), words("srun --mpi=pmi2 -N4 -n4", lab.Fisterra(t), "train --json --epochs 1 --peer-timeout 1m")...); resultOf(t, r).Ranks != 4 {
		t.Error(r)
	}
	s.ShowMunge()
	if r := s.Exec(within(t, longWait), words(srun, lab.Fisterra(t), "train --json --epochs 1 --peer-timeout 1m")...); resultOf(t, r).Ranks != 4 {
		t.Error(r)
	}
}

// TestClusterInit: 64 ranks on 16 claimed cpus are ready within 2 s more than Slurm itself needs to start and end 64
// processes, on two idle cores; on a machine that is slower or has other work within half a minute.
func TestClusterInit(t *testing.T) {
	lab.Fisterra(t)
	s := lab.Cluster(t, 4, 4) // not beside other tests
	const srun = "srun -N4 -n64 --overcommit"
	bare, ready := math.Inf(1), math.Inf(1)
	const spare = 30 // s
	// The best of a few: the machine may have other work.
	for try := 0; try < 2 || try < 6 && ready > bare+spare; try++ {
		begin := time.Now()
		if r := s.Exec(within(t, longWait), words(srun, "true")...); r.Code != 0 {
			t.Fatal(r)
		}
		bare = min(bare, time.Since(begin).Seconds())
		since := fmt.Sprintf("%.6f", float64(time.Now().UnixMicro())/1e6)
		r := s.Exec(within(t, longWait), words(srun, lab.Fisterra(t), "bench init --peer-timeout 1m --format json --since", since)...)
		var x initReport
		if err := json.Unmarshal([]byte(r.Stdout), &x); err != nil || r.Code != 0 {
			t.Fatalf("%v: %v", err, r)
		}
		if x.Ranks != 64 || x.Hosts != 4 || x.Launcher != "slurm" {
			t.Errorf("%+v", x)
		}
		ready = min(ready, *x.Since)
		t.Logf("64 ranks: %.2f s from srun's start to the last one ready (best so far %.2f, srun true %.2f)", *x.Since, ready, bare)
	}
	if ready > bare+spare {
		t.Errorf("the last of 64 ranks is ready %.2f s after srun's start, want at most %d s more than srun true, %.2f", ready, spare, bare)
	}
}
