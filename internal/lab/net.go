package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/need"
)

// Hosts are network namespaces of this machine, each with a host name and an address of its
// own, joined by a switch. They share processes, files and /dev/shm: for nodes that share
// nothing use Cluster.
type Hosts struct {
	t      testing.TB
	hub    int // pid that holds the switch's namespace
	holder []int
}

// Net makes n hosts, 2 to 200, and removes them when the test is over.
func Net(t testing.TB, n int) *Hosts {
	t.Helper()
	need.Part(t, "netns", cannotUnshare())
	h := &Hosts{t: t, hub: hold(t)}
	lines := []string{
		// Its own MAC: else the bridge takes that of a port, which changes as ports come.
		"link add br0 address 02:46:53:54:00:10 type bridge", "link set br0 up",
	}
	for i := range n {
		pid := hold(t)
		h.holder = append(h.holder, pid)
		lines = append(lines,
			fmt.Sprintf("link add v%d type veth peer name eth0 netns %d", i, pid),
			fmt.Sprintf("link set v%d master br0 up", i))
	}
	h.ip(h.hub, lines...)
	for i, pid := range h.holder {
		h.ip(pid, "link set lo up", "addr add "+h.Address(i)+"/24 dev eth0", "link set eth0 up")
		if r := h.Command(context.Background(), i, "hostname", h.Name(i)).Run(); r.Code != 0 {
			t.Fatalf("hostname %s: %v", h.Name(i), r)
		}
	}
	return h
}

// hold starts a process that keeps a new network and host-name namespace open until the
// test is over or this process is gone: it reads a pipe that nobody writes to.
func hold(t testing.TB) int {
	t.Helper()
	// The shell inside says that the namespaces exist; until then its /proc/PID/ns is ours.
	cmd := exec.Command("unshare", "--net", "--uts", "sh", "-c", "echo; exec cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("namespace holder: %v %s", err, errs.String())
		}
	})
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatalf("unshare --net --uts: %v %s", err, errs.String())
	}
	return cmd.Process.Pid
}

func (h *Hosts) ip(pid int, lines ...string) {
	h.t.Helper()
	cmd := Command(context.Background(), h.t, "nsenter", "-t", strconv.Itoa(pid), "-n", "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if r := cmd.Run(); r.Code != 0 {
		h.t.Fatalf("ip -batch: %v\n%s", r, strings.Join(lines, "\n"))
	}
}

// Address is a host's IPv4 address on eth0.
func (h *Hosts) Address(host int) string { return fmt.Sprintf("10.99.0.%d", host+1) }

// Name is a host's name.
func (h *Hosts) Name(host int) string { return fmt.Sprintf("host%d", host) }

// Command prepares a command that runs on a host.
func (h *Hosts) Command(ctx context.Context, host int, args ...string) *Cmd {
	enter := []string{"-t", strconv.Itoa(h.holder[host]), "-n", "-u", "--"}
	return Command(ctx, h.t, "nsenter", append(enter, args...)...)
}

// Unplug pulls a host's cable: nothing arrives any more, and nobody is told.
func (h *Hosts) Unplug(host int) { h.t.Helper(); h.ip(h.hub, fmt.Sprintf("link set v%d down", host)) }

// Plug puts it in again.
func (h *Hosts) Plug(host int) { h.t.Helper(); h.ip(h.hub, fmt.Sprintf("link set v%d up", host)) }
