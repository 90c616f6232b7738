package ib

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/need"
)

// inNamespace marks the process that TestAliasInTheKernel starts of itself.
const inNamespace = "FISTERRA_TEST_IB_NAMESPACE"

// An alias ib0:1 and an interface xib0 exist in a network namespace of our own;
// the rule ib0 must find neither, and ib0's own address once it has one.
func TestAliasInTheKernel(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		checkAlias(t)
		return
	}
	need.Program(t, "netns", "ip")
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAliasInTheKernel$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		need.Part(t, "netns", fmt.Sprintf("no network namespace: %v", err))
	}
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func checkAlias(t *testing.T) {
	ip := func(args string) {
		t.Helper()
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
	rule, err := ParseRule("ib0", nil)
	if err != nil {
		t.Fatal(err)
	}
	ip("link add ib0 type bridge")
	ip("link add xib0 type bridge")
	ip("link set ib0 up")
	ip("link set xib0 up")
	ip("addr add 10.9.1.1/24 dev ib0 label ib0:1")
	ip("addr add 10.9.2.1/24 dev xib0")
	if got, err := rule.Own("here"); err == nil {
		t.Fatalf("ib0 is %s, which is the alias's or another interface's", got)
	} else if !strings.Contains(err.Error(), "ib0:1 (10.9.1.1)") || !strings.Contains(err.Error(), "xib0 (10.9.2.1)") {
		t.Errorf("%v does not list what there is", err)
	}
	ip("addr add 10.9.3.1/24 dev ib0")
	if got, err := rule.Own("here"); got != "10.9.3.1" || err != nil {
		t.Fatalf("ib0: %s, %v", got, err)
	}
	ip("link set ib0 down")
	if got, err := rule.Own("here"); err == nil {
		t.Fatalf("ib0 is down, and is %s", got)
	}
}
