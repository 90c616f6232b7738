package main

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/ib"
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
