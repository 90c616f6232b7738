package fisterra

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/fisterra-hpc/fisterra"

// imports is the house plan: what each package may import of this module and
// from outside, and why. A pattern ending in /... stands for the tree. The
// standard library is free for all. Test files are not held to it.
var imports = []struct {
	pkg string
	may string // space separated; "x/" is golang.org/x/
	why string
}{
	{"internal/need", "", "tests of all packages use it"},
	{"internal/wire", "", "names and formats that launcher and ranks share"},
	{"internal/osyield", "x/sys", "system calls only"},
	{"internal/procmem", "x/sys", "system calls only"},
	{"internal/memcopy", "x/sys", "copies within a process"},
	{"internal/fence", "x/sys", "one instruction and one system call"},
	{"internal/biased", "internal/fence", "a lock"},
	{"internal/kernel/...", "x/sys", "arithmetic on slices"},
	{"internal/clib", "purego", "C libraries opened at run time"},
	{"internal/lab", "internal/need x/sys", "clusters and networks for tests"},
	{"internal/wholefile", "", "files that are there as a whole or not at all"},
	{"internal/testlog", "", "tests wait for a line of a log"},
	{"internal/testsum", "", "reads the output of go test"},
	{"internal/pgo", "pprof", "merges profiles of the command"},
	{"slurm/...", "slurm/... x/sys", "what Slurm tells a task; knows no network and no InfiniBand"},
	{"ib", "x/sys", "devices, interfaces, address rules"},
	{"mpi/transport", "", "the contract"},
	{"mpi/transport/transporttest", "mpi/transport internal/need internal/osyield x/sys", "the contract's conformance suite"},
	{"mpi/transport/shm", "mpi/transport internal/fence internal/memcopy internal/osyield internal/procmem x/sys", "a provider knows the contract only"},
	{"mpi/transport/tcp", "mpi/transport internal/wire x/sys", "a provider knows the contract only"},
	{"mpi/transport/sim", "mpi/transport", "a provider knows the contract only"},
	{"mpi/native", "internal/clib internal/osyield internal/procmem x/sys", "the system's MPI library"},
	{"mpi/pmix", "internal/clib", "libpmix"},
	{"mpi", "mpi/transport mpi/transport/shm mpi/transport/tcp mpi/transport/sim mpi/native mpi/pmix ib slurm slurm/... internal/biased internal/wire internal/osyield internal/procmem internal/memcopy x/sys", "puts providers, bootstrap and launchers together"},
	{"mpi/mpitest", "mpi mpi/launch mpi/transport mpi/transport/shm mpi/transport/sim mpi/transport/tcp", "conformance of communicators"},
	{"mpi/launch", "internal/wire x/sys", "starts ranks, is none"},
	{"collective/plan", "", "schedules as data"},
	{"collective/...", "collective/... mpi internal/kernel/... internal/biased internal/fence internal/osyield internal/procmem internal/memcopy x/sys", "stands on messages only"},
	{"ps", "mpi collective slurm", "moves tables, does no I/O of its own"},
	{"ps/train", "ps mpi collective internal/wholefile gonum compress", "models and data sets"},
	{"bench", "internal/kernel internal/memcopy collective collective/... mpi mpi/transport/sim gonum", "measures what the others do"},
	{"bench/peers", "x/sys", "starts programs and reads what they print"},
	{"cmd/fisterra", "... cobra pflag x/term x/sys", "the only package that may know all others"},
	{"examples/...", "mpi collective ps slurm pflag", "what a user may import"},
}

var outside = map[string]string{
	"x/":       "golang.org/x/",
	"purego":   "github.com/ebitengine/purego",
	"gonum":    "gonum.org/v1/",
	"compress": "github.com/klauspost/compress",
	"cobra":    "github.com/spf13/cobra",
	"pflag":    "github.com/spf13/pflag",
	"pprof":    "github.com/google/pprof",
}

func TestImportTable(t *testing.T) {
	out, err := exec.Command("go", "list", "-pgo=off", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	page, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{} // package and word of the table
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if name == "" || strings.HasPrefix(name, "build/") {
			continue
		}
		if !strings.Contains(string(page), "\n"+name+" ") {
			t.Errorf("package %s is not in ARCHITECTURE.md's list: add a line", name)
		}
		i := slices.IndexFunc(imports, func(r struct{ pkg, may, why string }) bool { return matches(r.pkg, name) })
		if i < 0 {
			t.Errorf("package %s is not in the import table: add a line with a reason", name)
			continue
		}
		for _, imp := range p.Imports {
			if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
				continue // standard library
			}
			by := false
			for _, word := range strings.Fields(imports[i].may) {
				if allows(word, imp) {
					by, used[imports[i].pkg+" "+word] = true, true
				}
			}
			if !by {
				t.Errorf("%s imports %s; it may import only: %s (%s)", name, imp, imports[i].may, imports[i].why)
			}
		}
	}
	for _, r := range imports {
		for _, word := range strings.Fields(r.may) {
			if !used[r.pkg+" "+word] && word != "x/sys" { // which some systems need and others do not
				t.Errorf("%s may import %s, which nothing in it does: take it out", r.pkg, word)
			}
		}
	}
}

// allows reports whether a word of the table stands for an import.
func allows(word, imp string) bool {
	if own, ours := strings.CutPrefix(imp, module+"/"); ours {
		return word == "..." && !strings.HasPrefix(own, "cmd/") || matches(word, own)
	}
	return strings.HasPrefix(word, "x/") && strings.HasPrefix(imp, outside["x/"]+strings.TrimPrefix(word, "x/")) ||
		outside[word] != "" && strings.HasPrefix(imp, outside[word])
}

func matches(pattern, name string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == tree || strings.HasPrefix(name, tree+"/")
	}
	return path.Clean(pattern) == name
}
