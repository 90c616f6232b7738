package mpi

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// startHosts starts one rank on each of n hosts with addresses of their own.
func startHosts(t *testing.T, hosts *lab.Hosts, n int, options string) []*proc {
	t.Helper()
	secret := wire.NewSecret()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	procs := make([]*proc, n)
	for rank := range procs {
		cmd := hosts.Command(ctx, rank, os.Args[0], "-test.run=^TestBootstrapRank$")
		procs[rank] = start(t, rank, cmd.Cmd, []string{
			fmt.Sprintf("%s=%d", wire.EnvRank, rank), fmt.Sprintf("%s=%d", wire.EnvSize, n),
			wire.EnvJob + "=net", wire.EnvRoot + "=" + hosts.Address(0) + ":4242", wire.EnvSecretFD + "=3",
			rankVariable + "=" + options,
		}, secretPipe(t, secret))
	}
	for _, p := range procs {
		if line := p.await(t, "ready", patience); !strings.HasSuffix(line, " host0,host1,host2,host3"[:1+n*6-1]) {
			t.Fatalf("rank %d: %s", p.rank, line)
		}
	}
	return procs
}

// A cable is pulled and stays out: both sides learn of it, by name, within
// twice the peer timeout.
func TestBootstrapCablePulled(t *testing.T) {
	t.Parallel()
	hosts := lab.Net(t, 4)
	procs := startHosts(t, hosts, 4, "peer-timeout=12s")
	pulled := time.Now()
	hosts.Unplug(2)
	for _, rank := range []int{0, 1, 3} {
		procs[rank].await(t, "lost 2 no sign of life", 2*patience)
	}
	for _, rank := range []int{0, 1, 3} {
		procs[2].await(t, fmt.Sprintf("lost %d ", rank), 2*patience)
	}
	if took := time.Since(pulled); took > 2*time.Minute { // five times that: the machine may have other work
		t.Errorf("noticed after %v", took)
	}
	for _, rank := range []int{0, 1, 3} {
		if n := procs[rank].times("lost"); n != 1 {
			t.Errorf("rank %d heard of %d losses, want 1", rank, n)
		}
	}
	orderAll([]*proc{procs[0], procs[1], procs[3]}, "bye 1m")
	for _, rank := range []int{0, 1, 3} {
		procs[rank].await(t, "parted <nil>", 2*patience)
	}
}

// The root's cable: the others find a new one, and the root is alone.
func TestBootstrapRootUnplugged(t *testing.T) {
	t.Parallel()
	hosts := lab.Net(t, 4)
	procs := startHosts(t, hosts, 4, "peer-timeout=12s")
	hosts.Unplug(0)
	for _, p := range procs[1:] {
		p.await(t, "lost 0 no sign of life", 2*patience)
		procs[0].await(t, fmt.Sprintf("lost %d ", p.rank), 2*patience)
	}
	orderAll(procs[1:], "bye 1m")
	for _, p := range procs[1:] {
		if line := p.await(t, "parted", 2*patience); line != "parted <nil>" || p.times("lost") != 1 {
			t.Errorf("rank %d: %s, %d losses", p.rank, line, p.times("lost"))
		}
	}
}

// A cable that is out for less than the peer timeout is ridden through.
func TestBootstrapCableBack(t *testing.T) {
	hosts := lab.Net(t, 2)
	procs := startHosts(t, hosts, 2, "peer-timeout=15s")
	hosts.Unplug(1)
	outage := time.Now().Add(1500 * time.Millisecond)
	for _, p := range procs {
		if line, said := p.says("lost", time.Until(outage)); said {
			t.Fatalf("rank %d, while the cable was out: %s", p.rank, line)
		}
	}
	hosts.Plug(1)
	orderAll(procs, "bye 1m")
	for _, p := range procs {
		if line := p.await(t, "parted", patience); line != "parted <nil>" || p.said("lost") {
			t.Errorf("rank %d: %s", p.rank, line)
		}
	}
}

// A goodbye that a network keeps back for a while is no loss.
func TestBootstrapGoodbyeKeptBack(t *testing.T) {
	t.Parallel()
	hosts := lab.Net(t, 2)
	procs := startHosts(t, hosts, 2, "peer-timeout=30s")
	procs[1].order("bye 1m")
	procs[0].order("hear 1")
	procs[0].await(t, "heard 1", patience)
	hosts.Unplug(0)
	procs[0].order("bye 1m")
	// So long that what rank 1 says when the cable is in again comes before what rank 0 has tried to say, and finds it gone if it
	// does not wait.
	if line, said := procs[1].says("parted", 2400*time.Millisecond); said {
		t.Fatalf("rank 1, while the cable was out: %s", line)
	}
	hosts.Plug(0)
	for _, p := range procs {
		if line := p.await(t, "parted", patience); line != "parted <nil>" || p.said("lost") {
			t.Errorf("rank %d: %s", p.rank, line)
		}
	}
}

// An outage is ridden through whose end TCP's own attempts, 12.8 s apart by then, would not meet before the peer timeout is
// over, and that lasts longer than 15 attempts do when they come each second.
func TestBootstrapCableBackLate(t *testing.T) {
	t.Parallel()
	const timeout, out = 25 * time.Second, 17 * time.Second // attempts come 12.6 to 13.6 s and 25.4 to 26.4 s after
	hosts := lab.Net(t, 3)
	procs := startHosts(t, hosts, 3, fmt.Sprint("peer-timeout=", timeout))
	hosts.Unplug(0) // the one that all others hang below
	unplugged := time.Now()
	for _, until := range []time.Duration{out, timeout + time.Second} {
		for _, p := range procs {
			if line, said := p.says("lost", time.Until(unplugged.Add(until))); said {
				t.Fatalf("rank %d, %v after the cable was pulled for %v: %s", p.rank, time.Since(unplugged), out, line)
			}
		}
		hosts.Plug(0)
	}
	orderAll(procs, "bye 1m")
	for _, p := range procs {
		if line := p.await(t, "parted", patience); line != "parted <nil>" || p.said("lost") {
			t.Errorf("rank %d: %s", p.rank, line)
		}
	}
}

// startMunge runs a munge daemon with a key of its own and returns a
// slurm.conf that names its socket.
func startMunge(t *testing.T) (conf, socket string) {
	t.Helper()
	munged := need.Program(t, "munge", "munged")
	dir, err := os.MkdirTemp("", "fisterra-munge.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, wire.NewSecret(), 0o400); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "socket")
	// It goes to the background when it listens.
	cmd := lab.Command(t.Context(), t, munged, "--force", "--key-file="+key, "--socket="+socket,
		"--pid-file="+filepath.Join(dir, "pid"), "--log-file="+filepath.Join(dir, "log"), "--seed-file="+filepath.Join(dir, "seed"))
	if r := cmd.Run(); r.Code != 0 || r.Err != nil {
		t.Fatalf("munged: %v", r)
	}
	t.Cleanup(func() {
		if r := lab.Command(context.Background(), t, munged, "--stop", "--socket="+socket).Run(); r.Code != 0 || r.Err != nil {
			t.Errorf("munged --stop: %v", r)
		}
	})
	conf = filepath.Join(dir, "slurm.conf")
	text := "# test\nClusterName=x\nAuthInfo = cred_expire=5,socket=" + socket + "\n"
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return conf, socket
}

func TestMungeVouches(t *testing.T) {
	_, socket := startMunge(t)
	m := &munge{socket: socket}
	ctx := context.Background()
	cred, err := m.encode(ctx, []byte("some words"))
	if err != nil {
		t.Fatal(err)
	}
	uid, payload, err := m.decode(ctx, cred)
	if err != nil || uid != os.Getuid() || string(payload) != "some words" {
		t.Fatalf("uid %d, %q, %v", uid, payload, err)
	}
	if _, _, err := m.decode(ctx, cred); err == nil || !strings.Contains(err.Error(), "Replayed") {
		t.Errorf("a credential shown twice: %v", err)
	}
	again := append(binary.BigEndian.AppendUint32(nil, uint32(len(cred))), cred...)
	answer, err := m.askOnce(ctx, mungeDecode, mungeDecoded, mungeRetries, again)
	if r := (mungeReader{b: answer}); err != nil || r.status() != nil {
		t.Errorf("a credential shown again since the answer was lost: %q, %v", answer, err)
	}
	cred[len(cred)/2] ^= 1
	if _, _, err := m.decode(ctx, cred); err == nil {
		t.Error("a forged credential was taken")
	}
}

// A Slurm step whose keys come by munge.
func TestBootstrapByMunge(t *testing.T) {
	conf, _ := startMunge(t)
	job := fmt.Sprint(70000 + os.Getpid()%20000)
	procs := make([]*proc, 3)
	for rank := range procs {
		procs[rank] = start(t, rank, ownBinary(), append(slurmEnv(rank, 3, job), "SLURM_CONF="+conf, rankVariable+"="))
	}
	awaitAll(t, procs, "ready", patience)
	orderAll(procs, "bye 1m")
	awaitAll(t, procs, "parted <nil>", patience)
}

// Another user who knows everything but is not this one does not get the secret.
func TestBootstrapOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		need.Part(t, "root", "another user's process can be started only by root")
	}
	t.Parallel()
	setpriv := need.Program(t, "root", "setpriv")
	conf, _ := startMunge(t)
	job := fmt.Sprint(90000 + os.Getpid()%20000)
	procs := make([]*proc, 2)
	procs[1] = start(t, 1, ownBinary(), append(slurmEnv(1, 2, job), "SLURM_CONF="+conf, rankVariable+"=")) // position 0
	binary := filepath.Join(filepath.Dir(conf), "rank.test")
	copyFile(t, os.Args[0], binary)
	stranger := start(t, 0, exec.Command(setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", binary, "-test.run=^TestBootstrapRank$"),
		append(slurmEnv(0, 2, job), "SLURM_CONF="+conf, rankVariable+"=start-timeout=10s"))
	if line := stranger.await(t, "failed", patience); !strings.Contains(line, "munge: error 18: Unauthorized credential for client UID=65534") {
		t.Error(line)
	}
	procs[0] = start(t, 0, ownBinary(), append(slurmEnv(0, 2, job), "SLURM_CONF="+conf, rankVariable+"="))
	awaitAll(t, procs, "ready", patience) // nobody has taken its place
	orderAll(procs, "bye 1m")
	awaitAll(t, procs, "parted <nil>", patience)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Ranks of other launchers, without any MPI library: PMI by a descriptor, PMI by a port, PMIx.
func TestMPIBootstrapByHydra(t *testing.T) {
	meetUnder(t, "", lab.MPICH)
}

// PMI_PORT answers anybody, so the secret goes another way.
func TestMPIBootstrapByHydraPort(t *testing.T) {
	byPort := lab.MPICH
	byPort.Argv = append(byPort.Argv, "-pmi-port")
	meetUnder(t, "secret-dir="+t.TempDir(), byPort)
}

func TestMPIBootstrapByPMIx(t *testing.T) {
	meetUnder(t, "", lab.OpenMPI)
}

// A rank that has no address for the others says so, and the others say what it said: none of them waits for it.
func TestMPIBootstrapRankWithoutAddress(t *testing.T) {
	for _, l := range []struct {
		name string
		lab.Launcher
	}{{"hydra", lab.MPICH}, {"pmix", lab.OpenMPI}} {
		for rank, others := range []string{"position 0 (rank 0 on %s) cannot start: ", "rank 1 on %s came and broke off: "} {
			t.Run(fmt.Sprintf("%s rank %d", l.name, rank), func(t *testing.T) {
				r := ranksUnder(t, fmt.Sprintf("start-timeout=2m lost-interface=%d", rank), l.Launcher)
				why := fmt.Sprintf(others, shortHostname())
				if told := strings.Count(r.Stdout, why); told != 2 {
					t.Errorf("%d of 2 others were told %q: %v", told, why, r)
				}
				if n := strings.Count(r.Stdout, "nosuch0"); n != 3 {
					t.Errorf("%d of 3 ranks name the interface: %v", n, r)
				}
			})
		}
	}
}

// meetUnder has three ranks meet under another launcher and part again.
func meetUnder(t *testing.T, options string, l lab.Launcher) {
	t.Helper()
	r := ranksUnder(t, options, l)
	for rank := range 3 {
		if !strings.Contains(r.Stdout, fmt.Sprintf("ready %d %d ", rank, rank)) {
			t.Fatalf("rank %d: %v", rank, r)
		}
	}
	if n := strings.Count(r.Stdout, "parted <nil>"); r.Code != 0 || n != 3 || strings.Contains(r.Stdout, "lost") {
		t.Error(r)
	}
}

// ranksUnder runs three ranks under another launcher.
func ranksUnder(t *testing.T, options string, l lab.Launcher) lab.Result {
	t.Helper()
	l.Needed(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := l.Command(ctx, t, 3, os.Args[0], "-test.run=^TestBootstrapRank$")
	cmd.Env = append(cmd.Env, rankVariable+"=order=bye "+options)
	return cmd.Run()
}
