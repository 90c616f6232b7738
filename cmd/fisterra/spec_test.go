package main

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// A host answers for itself by its name in the step, whatever it is called otherwise.
func TestSpecTellsItsOwnAddress(t *testing.T) {
	here := &ib.Host{Name: "c7101.ft2.cesga.es", Addresses: func() ([]ib.InterfaceAddress, error) {
		return []ib.InterfaceAddress{{Label: "ib0", Interface: "ib0", Address: netip.MustParseAddr("172.28.71.1"), Up: true}}, nil
	}}
	rule, err := ib.ParseRule("ib0", here)
	if err != nil {
		t.Fatal(err)
	}
	if !onlyHostsKnow(rule, []string{"c7101", "c7102"}) {
		t.Error("the hosts are not asked for what only they know")
	}
	if got := tell(rule, "c7101"); got != (told{Host: "c7101", Address: "172.28.71.1"}) {
		t.Errorf("%+v", got)
	}
	if rule, err = ib.ParseRule("hsn0", here); err != nil {
		t.Fatal(err)
	}
	if got := tell(rule, "c7101"); got.Address != "" || !strings.Contains(got.Error, "hsn0") {
		t.Errorf("%+v", got)
	}
}

// Why a host with very many interfaces has no address is told like any other reason.
func TestSpecTellsALongError(t *testing.T) {
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	long := "no interface fits; there are " + strings.Repeat("<veth> (10.0.0.1), ", 1000)
	var wait sync.WaitGroup
	for rank, own := range []told{{Host: "c7101", Error: long}, {Host: "c7102", Address: "10.0.0.2"}} {
		wait.Go(func() {
			all, err := exchange(t.Context(), worlds[rank], own, longWait)
			if err != nil || !strings.HasPrefix(all[0].Error, long[:200]) || !strings.HasSuffix(all[0].Error, " ...") || all[1].Address != "10.0.0.2" {
				t.Errorf("rank %d: %v, %v", rank, all, err)
			}
			closeWorld(t.Context(), worlds[rank], longWait)
		})
	}
	wait.Wait()
}

// The lines of README.md that start other programs by spec end with its exit code where it fails, and do not start them.
func TestReadmeStartsNothingWithoutSpec(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`bash -c '([^']*fisterra spec[^']*)'`).FindAllSubmatch(text, -1)
	if len(lines) == 0 {
		t.Fatal("README.md has no line with spec")
	}
	for _, line := range lines {
		for code, starts := range map[string]bool{"0": true, "2": false} {
			dir := t.TempDir()
			for name, script := range map[string]string{"fisterra": "echo A=1; exit " + code, "python": "echo started"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("#!"+bash+"\n"+script+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), bash, "-c", string(line[1]))
			cmd.Env = []string{"PATH=" + dir}
			out, _ := cmd.Output()
			if got := cmd.ProcessState.ExitCode(); strconv.Itoa(got) != code || (len(out) > 0) != starts {
				t.Errorf("%s: with exit code %s of spec: %d, %q", line[1], code, got, out)
			}
		}
	}
}
