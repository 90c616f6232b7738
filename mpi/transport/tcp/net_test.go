package tcp

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/testlog"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// The tests of a network that fails run again on a host of their own: hereVariable has the address
// of that, and then what else the test wants to know.
const hereVariable = "FISTERRA_TEST_TCP_HERE"

// there runs the calling test again on host 0.
func there(t *testing.T, hosts *lab.Hosts, more string) {
	t.Helper()
	cmd := hosts.Command(t.Context(), 0, os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), hereVariable+"="+hosts.Address(0)+" "+more)
	if r := cmd.Run(); r.Code != 0 {
		t.Error(r)
	}
}

// startEcho starts an echo on host 1 that plays one round, and returns its address.
func startEcho(t *testing.T, hosts *lab.Hosts) (address string) {
	t.Helper()
	cmd := hosts.Command(t.Context(), 1, os.Args[0])
	cmd.Env = append(os.Environ(), echoOf(hosts.Address(1), hosts.Address(0)+":1")) // rank 0 dials
	cmd.Stdin, cmd.Stderr = strings.NewReader("1 1\n"), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	address, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(address)
}

func setLink(t *testing.T, state string) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "set", "eth0", state).CombinedOutput(); err != nil {
		t.Fatalf("ip link set eth0 %s: %v %s", state, err, out)
	}
}

// A first message that finds the network down leaves when it is up again.
func TestFirstMessageWaitsForNetwork(t *testing.T) {
	place, here := os.LookupEnv(hereVariable)
	if !here {
		hosts := lab.Net(t, 2)
		there(t, hosts, startEcho(t, hosts))
		return
	}
	host, peer, _ := strings.Cut(place, " ")
	var log testlog.Buffer
	r := openRank(t, Config{Rank: 0, Size: 2, Host: host, Log: debugLog(&log)})
	introduce(t, []*rank{r})
	r.Provider.cfg.Job, r.Provider.job = "bench.0", "bench.0.0" // as the echo has it
	if err := r.Connect(1, []byte(peer)); err != nil {
		t.Fatal(err)
	}
	setLink(t, "down")
	h := transport.Header{Kind: kindEager}
	if o := r.Send(1, &h, nil); o != transport.Full {
		t.Fatal(o)
	}
	pump(t, []*rank{r}, "two attempts, or a loss", func() bool {
		return strings.Count(log.String(), "no connection yet") >= 2 || len(r.lost) > 0
	})
	setLink(t, "up")
	if err := r.lost[1]; err != nil {
		t.Fatalf("lost while the network was down: %v", err)
	}
	send(t, []*rank{r}, 0, 1, h, []byte("x"))
	pump(t, []*rank{r}, "the echo", func() bool { return len(r.messages) == 1 })
	if err := r.lost[1]; err != nil {
		t.Errorf("lost: %v", err)
	}
}

// A rank connects to more peers than its host has ports to dial from.
func TestFewPorts(t *testing.T) {
	host, here := os.LookupEnv(hereVariable)
	if !here {
		there(t, lab.Net(t, 2), "")
		return
	}
	const n = 9
	var log testlog.Buffer
	ranks := make([]*rank, n)
	for i := range ranks {
		ranks[i] = openRank(t, Config{Rank: i, Size: n, Host: strings.TrimSpace(host), Log: debugLog(&log)})
	}
	introduce(t, ranks)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 20001"), 0); err != nil { // others than the ranks listen on
		t.Fatal(err)
	}
	h := transport.Header{Kind: 5}
	for i := 1; i < n; i++ {
		ranks[0].Send(i, &h, nil)
	}
	pump(t, ranks, "connections, or the lack of a port", func() bool {
		return len(ranks[0].conns) == n-1 || log.String() != "" || len(ranks[0].lost) > 0
	})
	if len(ranks[0].conns) != n-1 {
		t.Errorf("%d connections of %d; lost %v; %s", len(ranks[0].conns), n-1, ranks[0].lost, log.String())
	}
}
