package mpi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/slurm"
)

const patience = time.Minute

func TestBootstrapAndGoodbye(t *testing.T) {
	procs := newJob(t).startAll(t, 4)
	host := shortHostname()
	for rank, p := range procs {
		want := fmt.Sprintf("ready %d %d %s,%s,%s,%s", rank, rank, host, host, host, host)
		if got := p.await(t, "ready", patience); got != want {
			t.Errorf("rank %d: %q, want %q", rank, got, want)
		}
	}
	orderAll(procs, "bye 1m")
	for _, p := range procs {
		if line := p.await(t, "parted", patience); line != "parted <nil>" {
			t.Errorf("rank %d: %s", p.rank, line)
		}
		if p.said("lost") {
			t.Errorf("rank %d took a goodbye for a loss", p.rank)
		}
	}
}

// More ranks than the root of the tree has children.
func TestBootstrapTwoLevels(t *testing.T) {
	t.Parallel()
	const n = 40
	procs := newJob(t).startAll(t, n)
	awaitAll(t, procs, "ready", 2*patience)
	procs[38].cmd.Process.Kill() // below rank 1
	for _, p := range procs {
		if p.rank != 38 {
			p.await(t, "lost 38 its process ended", patience)
		}
	}
	procs[1].cmd.Process.Kill() // the parent of 33 to 39
	for _, p := range procs {
		if p.rank != 38 && p.rank != 1 {
			p.await(t, "lost 1 its process ended", patience)
		}
	}
	// Its children hang below rank 0 now: what becomes of them still reaches everybody.
	procs[35].cmd.Process.Kill()
	for _, p := range procs {
		if p.rank != 38 && p.rank != 1 && p.rank != 35 {
			p.await(t, "lost 35 ", 2*patience) // at once, or found missing if it had no time to come
		}
	}
	var living []*proc
	for _, p := range procs {
		if p.rank != 38 && p.rank != 1 && p.rank != 35 {
			living = append(living, p)
		}
	}
	orderAll(living, "bye 1m")
	for _, p := range living {
		if line := p.await(t, "parted", patience); line != "parted <nil>" {
			t.Errorf("rank %d: %s", p.rank, line)
		}
		if n := p.times("lost "); n != 3 {
			t.Errorf("rank %d heard of %d losses, want 3", p.rank, n)
		}
	}
}

func TestBootstrapLayoutDiffers(t *testing.T) {
	j := newJob(t)
	j.opts = func(rank int) string {
		if rank == 2 {
			return "mode=async roles=ps,worker,worker,worker"
		}
		return "mode=sync roles=ps,worker,worker,worker"
	}
	for _, p := range j.startAll(t, 4) {
		line := p.await(t, "failed", patience)
		if want := `mode is "sync" on ranks 0,1,3, "async" on rank 2`; !strings.Contains(line, want) {
			t.Errorf("rank %d: %s, want %s", p.rank, line, want)
		}
	}
}

func TestBootstrapRankMissing(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.opts = func(rank int) string { return []string{"start-timeout=20s", "start-timeout=2m"}[rank] } // time for rank 1 to come
	procs := []*proc{1: j.start(t, 1, 4)}
	procs[0] = j.start(t, 0, 4)
	for _, p := range procs {
		if line := p.await(t, "failed", 2*patience); !strings.Contains(line, fmt.Sprintf("waited for 4 ranks on %s (the launcher's), ranks 2,3 did not come", j.root.Addr())) {
			t.Errorf("rank %d: %s", p.rank, line)
		}
	}
}

// inherited are the descriptors that Fisterra's launcher passes to a rank, of this process. The rank closes them.
func inherited(t *testing.T, j *job, rank int) (secret, root int) {
	t.Helper()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(pipe[1], j.secret); err != nil {
		t.Fatal(err)
	}
	unix.Close(pipe[1])
	if rank > 0 {
		return pipe[0], -1
	}
	f, err := j.root.File()
	if err == nil {
		defer f.Close()
		root, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pipe[0], root
}

// startedRank is a rank of a job that Fisterra's launcher has started, all of it on this host.
func startedRank(t *testing.T, j *job, rank, size int) *origin {
	t.Helper()
	l := &origin{kind: ByFisterra, rank: rank, size: size, localRank: rank, localSize: size, node: -1, local: -1, job: "test", root: j.root.Addr().String(), aliveFD: -1}
	l.secretFD, l.rootFD = inherited(t, j, rank)
	return l
}

// A rank that comes after position 0 has seen that there will be no world is told so, too.
func TestBootstrapRefusesLateRanks(t *testing.T) {
	j := newJob(t)
	refused := make(chan error)
	for rank := range 3 {
		l := startedRank(t, j, rank, 3)
		go func() {
			if rank == 2 {
				<-time.After(200 * time.Millisecond)
			}
			m, err := meet(t.Context(), &Config{StartTimeout: patience / 2}, l)
			switch {
			case err != nil:
			case rank == 1: // was told which transport to use
				_, _, err = m.agree(t.Context(), nil)
			default:
				_, err = m.agreeOnTransport(t.Context(), finding{Rank: rank})
				m.close()
			}
			refused <- fmt.Errorf("rank %d: %w", rank, err)
		}()
	}
	j.root.Close() // the rank has its own descriptor of it
	for range 3 {
		if err := <-refused; !errors.Is(err, ErrLayout) {
			t.Errorf("%v, want ErrLayout", err)
		}
	}
}

// A rank that has met the others and cannot go on tells them why, and which it is.
func TestBootstrapRankBreaksOff(t *testing.T) {
	for broken := range 2 {
		j := newJob(t)
		failed := make(chan error)
		for rank := range 3 {
			l := startedRank(t, j, rank, 3)
			go func() {
				cfg := &Config{StartTimeout: patience / 2}
				m, err := meet(t.Context(), cfg, l)
				if err == nil && rank == broken {
					m.address = netip.MustParseAddr("192.0.2.1") // no host's
				}
				if err == nil {
					_, err = openMet(t.Context(), cfg, l, m, "tcp")
				}
				failed <- fmt.Errorf("rank %d: %w", rank, err)
			}()
		}
		j.root.Close() // the rank has its own descriptor of it
		told := 0
		for range 3 {
			err := <-failed
			if !errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), "tcp on 192.0.2.1") {
				t.Errorf("rank %d broke off; %v", broken, err)
			}
			if strings.Contains(err.Error(), fmt.Sprintf("rank %d on %s came and broke off", broken, shortHostname())) {
				told++
			}
		}
		if told != 2 {
			t.Errorf("rank %d broke off; %d of 2 others were told so", broken, told)
		}
	}
}

// A rank of a step that has no address for the others tells them, and which it is.
func TestBootstrapRankWithoutAddress(t *testing.T) {
	for broken := range 2 {
		j := newJob(t)
		j.opts = func(int) string { return fmt.Sprintf("start-timeout=2m lost-interface=%d", broken) }
		for rank, p := range j.startAll(t, 3) {
			line := p.await(t, "failed", patience)
			want := "nosuch0"
			if rank != broken {
				want = fmt.Sprintf("rank %d on %s came and broke off: ", broken, shortHostname())
			}
			if !strings.Contains(line, want) {
				t.Errorf("rank %d broke off; rank %d: %s, want %q", broken, rank, line, want)
			}
		}
	}
}

// Listeners of others that keep silent, on all ports of position 0 but the last, hold up nobody.
func TestJoinPassesOverSilentPlaces(t *testing.T) {
	layout := &slurm.Layout{Nodes: []string{"n0"}}
	var ports []int
	for range rendezvousPorts {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		ports = append(ports, silent.Addr().(*net.TCPAddr).Port)
		if len(ports) == rendezvousPorts {
			silent.Close()
		}
	}
	dir := t.TempDir()
	met := make(chan error)
	for rank := range 2 {
		l := &origin{
			kind: BySlurm, rank: rank, size: 2, localRank: rank, localSize: 2, local: rank, job: "test.0",
			step: &slurm.Job{Layout: layout, Ports: ports}, aliveFD: -1, rootFD: -1, secretFD: -1,
		}
		look := time.Tick(time.Millisecond)
		for end := time.Now().Add(patience); rank > 0; <-look { // without a key nobody is asked anything
			if keys, err := os.ReadDir(dir); err != nil || time.Now().After(end) {
				t.Fatalf("no key: %v", err)
			} else if len(keys) > 0 {
				break
			}
		}
		go func() {
			// One after the other the silent ones would take twice as long.
			cfg := &Config{StartTimeout: 15 * 2 * dialWait / 2, SecretDir: dir, Lookup: func(string) (string, bool) { return "", false }}
			m, err := meet(t.Context(), cfg, l)
			if err == nil {
				_, _, err = m.agree(t.Context(), nil)
			}
			met <- err
		}()
	}
	for range 2 {
		if err := <-met; err != nil {
			t.Error(err)
		}
	}
}

// The end of a connection that a rank has given up, and that position 0 hears of late, leaves the rank's next one alone.
func TestCollectKeepsTheSecondConnection(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m := &meeting{cfg: &Config{}, l: &origin{size: 3}, joiners: make(chan joiner, 3)}
	first, _ := net.Pipe()
	second, _ := net.Pipe()
	m.joiners <- joiner{rank: 1, conn: second, kind: frameCard}
	m.joiners <- joiner{rank: 1, conn: first, err: io.EOF}
	m.joiners <- joiner{rank: 2, conn: second, kind: frameCard}
	came, err := m.collect(ctx, frameCard, nil)
	if err != nil || came[1].conn != second {
		t.Errorf("%v, %v", came, err)
	}
}

// Who was there for a while is told from who was not.
func TestMissingTellsWhoBrokeOff(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(startTimeout(time.Second))
	m := &meeting{l: &origin{size: 5}, place: "10.0.0.1:16384 (address of n0)"}
	err := m.missing(ctx, map[int]joiner{2: {}}, map[int]error{1: io.EOF})
	const want = "waited for 5 ranks on 10.0.0.1:16384 (address of n0), ranks 3,4 did not come, rank 1 came and broke off (EOF): "
	if !errors.Is(err, ErrStartTimeout) || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// A rank that nobody takes any more finds its connection closed, also if it comes when the meeting is over.
func TestBootstrapClosesOnRanksThatCame(t *testing.T) {
	m := &meeting{cfg: &Config{}, l: &origin{rank: 0, size: 3}, deadline: time.Now().Add(patience), joiners: make(chan joiner, 3), done: make(chan struct{})}
	come := func(rank int) net.Conn {
		here, there := net.Pipe()
		go m.hear(rank, here)
		if _, err := there.Write(wire.AppendFrame(nil, frameCard, encodeJSON(card{Rank: rank}))); err != nil {
			t.Fatal(err)
		}
		return there
	}
	early := come(1)
	look := time.Tick(time.Millisecond)
	for end := time.Now().Add(patience); len(m.joiners) == 0; <-look {
		if time.Now().After(end) {
			t.Fatal("rank 1 was not heard")
		}
	}
	m.close()
	for rank, conn := range map[int]net.Conn{1: early, 2: come(2)} {
		conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("rank %d: %v, want EOF", rank, err)
		}
	}
}

// What position 0 refuses for is found on every rank.
func TestRefusalKeepsItsSentinel(t *testing.T) {
	for _, why := range []error{ErrLayout, ErrStartTimeout, startTimeout(time.Second), io.ErrUnexpectedEOF} {
		failed := fmt.Errorf("mpi: rank 3: %w", why)
		r, err := decodeJSON[refusal](encodeJSON(refuse(failed)))
		if err != nil {
			t.Fatal(err)
		}
		got := r.err()
		if got.Error() != failed.Error() {
			t.Errorf("%q, want %q", got, failed)
		}
		for _, sentinel := range []error{ErrLayout, ErrStartTimeout, ErrLauncher} {
			if errors.Is(got, sentinel) != errors.Is(failed, sentinel) {
				t.Errorf("%v is %v: %v", failed, sentinel, errors.Is(got, sentinel))
			}
		}
	}
}

// What a rank tells of a place is the last answer it got there: the attempt at
// which its time ran out has none.
func TestReasonIsTheLastAnswer(t *testing.T) {
	answer := fmt.Errorf("%w: munge: error 18", wire.ErrStranger)
	gone := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, ranOut := range []error{
		context.DeadlineExceeded,
		context.Canceled,
		fmt.Errorf("%w: %w", wire.ErrStranger, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}),
		&net.OpError{Op: "dial", Err: syscall.EAGAIN}, // a local socket whose queue is full
	} {
		if got := reason(answer, ranOut); got != answer {
			t.Errorf("after %q, %q: %q", answer, ranOut, got)
		}
		if got := reason(nil, ranOut); got != ranOut {
			t.Errorf("%q alone: %v", ranOut, got)
		}
	}
	if got := reason(answer, gone); got != error(gone) {
		t.Errorf("after %q, %q: %q", answer, gone, got)
	}
}

// Strangers at the rendezvous, before and while ranks come, change nothing.
func TestBootstrapAmongStrangers(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	first := j.start(t, 0, 3)
	for range 5 {
		conn, err := net.Dial("tcp", j.root.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	}
	impostor := newJob(t) // another secret
	impostor.root = j.root
	impostor.opts = func(int) string { return "start-timeout=10s" } // time to be turned away
	stranger := impostor.start(t, 1, 3)
	if line := stranger.await(t, "failed", patience); !strings.Contains(line, wire.ErrStranger.Error()) {
		t.Errorf("the stranger: %s", line)
	}
	procs := []*proc{first, j.start(t, 1, 3), j.start(t, 2, 3)}
	awaitAll(t, procs, "ready", patience)
	orderAll(procs, "bye 1m")
	awaitAll(t, procs, "parted <nil>", patience)
	first.logs(t, "connection refused")
}

// slurmEnv is what srun tells a task of a one-node step.
func slurmEnv(rank, size int, job string) []string {
	return []string{
		"SLURM_JOB_ID=" + job, "SLURM_STEP_ID=0", fmt.Sprintf("SLURM_PROCID=%d", rank), fmt.Sprintf("SLURM_STEP_NUM_TASKS=%d", size),
		"SLURM_NODEID=0", fmt.Sprintf("SLURM_LOCALID=%d", size-1-rank), // positions run against ranks
		"SLURM_STEP_NODELIST=n0", "SLURM_STEP_NUM_NODES=1", fmt.Sprintf("SLURM_STEP_TASKS_PER_NODE=%d", size),
	}
}

// In a Slurm step with a key file: position 0 is the last rank, its first port is taken by a
// stranger, and it starts after the others. It removes the key file of a job that was killed.
func TestBootstrapSlurmStep(t *testing.T) {
	dir := t.TempDir()
	if _, err := os.Stat(mungeDefaultPath); err != nil { // else no key file is used
		if err := newSecretFile(dir, &origin{job: "9.0"}).create(wire.NewSecret(), time.Now().Add(-2*keyLeft)); err != nil {
			t.Fatal(err)
		}
	}
	jobID := fmt.Sprint(10000 + os.Getpid()%50000)
	probe := origin{job: jobID + ".0"}
	taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", probe.rendezvousPorts()[0]))
	if err != nil {
		t.Skip("the port of this test is in use:", err)
	}
	defer taken.Close()
	go func() { // a server that waits for its clients to speak first
		for {
			conn, err := taken.Accept()
			if err != nil {
				return
			}
			go func() { conn.Write([]byte("220 ready\r\n")); conn.Close() }()
		}
	}()
	procs := make([]*proc, 3)
	for rank := range procs {
		procs[rank] = start(t, rank, ownBinary(), append(slurmEnv(rank, 3, jobID), rankVariable+"=secret-dir="+dir))
	}
	for rank, p := range procs {
		if line := p.await(t, "ready", patience); !strings.HasPrefix(line, fmt.Sprintf("ready %d %d n0,", rank, 2-rank)) {
			t.Errorf("rank %d: %s", rank, line)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("key files left: %v", left)
	}
	orderAll(procs, "bye 1m")
	awaitAll(t, procs, "parted <nil>", patience)
}

func TestBootstrapWithoutKeys(t *testing.T) {
	p := start(t, 0, ownBinary(), append(slurmEnv(0, 2, "7"), rankVariable+"=", "SLURM_CONF=/nonexistent"))
	if _, err := os.Stat(mungeDefaultPath); err == nil {
		t.Skip("this machine has a munge daemon")
	}
	line := p.await(t, "failed", patience)
	for _, want := range []string{"munge does not answer", "--secret-dir"} {
		if !strings.Contains(line, want) {
			t.Errorf("%s: no %q", line, want)
		}
	}
}

// What Init promises of its errors holds where this host cannot do what it is to do.
func TestInitErrorsOfThisHost(t *testing.T) {
	vars := map[string]string{wire.EnvRank: "1", wire.EnvSize: "2", wire.EnvJob: "test", wire.EnvRoot: "127.0.0.1:1", wire.EnvSecretFD: "900"}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	for _, rule := range []string{"nosuch0", "no such rule"} {
		if _, err := Init(t.Context(), &Config{Lookup: lookup, AddressRule: rule}); !errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), rule) {
			t.Errorf("address rule %q: %v, want ErrTransport", rule, err)
		}
	}
	l := withoutPorts(t)
	_, _, err := (&meeting{cfg: &Config{}, l: l}).listen(t.Context())
	for _, want := range []string{"all 16 ports are taken", fmt.Sprint(l.rendezvousPorts()[0]), "--resv-ports", "--mpi=pmi2"} {
		if !errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), want) {
			t.Errorf("no port left: %v, want ErrTransport and %q", err, want)
		}
	}
}

// Where the name of position 0's host leads to loopback on itself, the others find it at whichever address they have for it.
func TestPositionZeroListensWhereItIsLookedFor(t *testing.T) {
	for _, c := range []struct {
		localSize int
		address   string
		why       string
	}{
		{1, "", `the name "localhost" leads to none`},
		{2, "127.0.0.1", "all ranks are on this host"},
	} {
		layout, err := slurm.NewLayout([]string{"localhost", "n1"}, []int{1, 1})
		if err != nil {
			t.Fatal(err)
		}
		l := &origin{kind: BySlurm, size: 2, localSize: c.localSize, rootFD: -1, step: &slurm.Job{Layout: layout}}
		if address, why := zeroPlace(t.Context(), l); address != c.address || !strings.Contains(why, c.why) {
			t.Errorf("%d of 2 ranks here: on %q (%s)", c.localSize, address, why)
		}
	}
}

// withoutPorts is position 0 of a step on a host where it finds no port.
func withoutPorts(t *testing.T) *origin {
	l := &origin{kind: BySlurm, size: 2, localSize: 2, job: stepID(t) + ".0", rootFD: -1}
	for _, port := range l.rendezvousPorts() {
		if taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil { // else somebody else has it
			t.Cleanup(func() { taken.Close() })
		}
	}
	return l
}

// The key file is there before anybody can look for it, and gone where position 0 cannot listen.
func TestKeyFileComesBeforeTheListener(t *testing.T) {
	if _, err := os.Stat(mungeDefaultPath); err == nil {
		t.Skip("this machine has a munge daemon")
	}
	l, dir := withoutPorts(t), t.TempDir()
	cfg := &Config{SecretDir: dir, Lookup: func(string) (string, bool) { return "", false }}
	if _, err := meet(t.Context(), cfg, l); !errors.Is(err, ErrTransport) {
		t.Errorf("no port left: %v, want ErrTransport", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
	if err := os.Mkdir(newSecretFile(dir, l).path, 0o700); err != nil { // in its way
		t.Fatal(err)
	}
	if _, err := meet(t.Context(), cfg, l); !errors.Is(err, ErrLauncher) || !strings.Contains(err.Error(), "key file") {
		t.Errorf("no key file and no port left: %v, want ErrLauncher for the file", err)
	}
}

// A single rank needs nobody.
func TestBootstrapSingleton(t *testing.T) {
	p := start(t, 0, ownBinary(), []string{rankVariable + "="})
	if line := p.await(t, "ready", patience); !strings.HasPrefix(line, "ready 0 0 ") {
		t.Error(line)
	}
	p.order("bye 1m")
	p.await(t, "parted <nil>", patience)
}

func TestCompareLayouts(t *testing.T) {
	cards := func(layouts ...[]LayoutField) []card {
		var all []card
		for i, l := range layouts {
			all = append(all, card{Protocol: 1, Rank: i, Size: len(layouts), Layout: l})
		}
		return all
	}
	a, b := LayoutField{"ps", "1"}, LayoutField{"lr", "0.1"}
	for _, c := range []struct {
		name  string
		cards []card
		want  []string
	}{
		{"same", cards([]LayoutField{a, b}, []LayoutField{b, a}), nil},
		{"value", cards([]LayoutField{a}, []LayoutField{a}, []LayoutField{{"ps", "2"}}), []string{`ps is "1" on ranks 0,1, "2" on rank 2`}},
		{"missing", cards([]LayoutField{a, b}, []LayoutField{a}), []string{`lr is "0.1" on rank 0, nothing on rank 1`}},
		{"two", cards([]LayoutField{a, b}, []LayoutField{{"ps", "3"}, {"lr", "1"}}), []string{"ps is", "lr is"}},
		{"size", []card{{Protocol: 1, Size: 2}, {Protocol: 1, Rank: 1, Size: 3}}, []string{`number of ranks is "2" on rank 0, "3" on rank 1`}},
	} {
		err := compareLayouts(c.cards)
		if (err != nil) != (c.want != nil) || err != nil && !errors.Is(err, ErrLayout) {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", c.name, err, want)
			}
		}
	}
}

// A value comes to the rank that compares as it was, also if it is no text: the name of a file may be none.
func TestLayoutTravelsWhole(t *testing.T) {
	own := card{Layout: []LayoutField{{"--data", "d\xe9\xff"}, {"--lr", "0.1"}}}
	got, err := decodeJSON[card](encodeJSON(own))
	if err == nil {
		err = compareLayouts([]card{own, got})
	}
	if err != nil {
		t.Error(err)
	}
}

func TestPositions(t *testing.T) {
	place := func(rank, node, local int, host string) card {
		return card{Rank: rank, Node: node, Local: local, Host: host}
	}
	for _, c := range []struct {
		name  string
		cards []card
		want  []int
		err   string
	}{
		{"cyclic", []card{place(0, 0, 0, "a"), place(1, 1, 0, "b"), place(2, 0, 1, "a"), place(3, 1, 1, "b")}, []int{0, 2, 1, 3}, ""},
		{"by host", []card{place(0, -1, -1, "b"), place(1, -1, -1, "a"), place(2, -1, -1, "b")}, []int{0, 2, 1}, ""},
		{"twice", []card{place(0, 0, 0, "a"), place(1, 0, 0, "a")}, nil, "task 0 of node 0"},
		{"half told", []card{place(0, 0, 0, "a"), place(1, -1, -1, "a")}, nil, "only 1 of 2"},
	} {
		got, err := positions(c.cards)
		if !slices.Equal(got, c.want) || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

// busyManager is a process manager that is asked for a goodbye only.
type busyManager struct {
	manager
	bounded bool
	time    time.Duration
}

func (b *busyManager) Finalize(ctx context.Context) error {
	var end time.Time
	end, b.bounded = ctx.Deadline()
	b.time = time.Until(end)
	return nil
}

func TestGivingUpBoundsTheGoodbye(t *testing.T) {
	b := &busyManager{}
	m := &meeting{done: make(chan struct{}), manager: b}
	m.close()
	if !b.bounded || b.time > leaveTime {
		t.Errorf("the process manager has %v (bounded: %v) to answer a rank that gives up, want at most %v", b.time, b.bounded, leaveTime)
	}
}

// toldManager is a process manager in whose space a value lies.
type toldManager struct {
	manager
	value string
}

func (toldManager) Fence(context.Context) error { return nil }

func (m toldManager) Get(context.Context, string) ([]byte, error) { return []byte(m.value), nil }

func TestWrongNoticeOfPositionZero(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, n := range []notice{{}, {Secret: wire.NewSecret()}, {Address: "n0", Secret: wire.NewSecret()}, {Address: "127.0.0.1:1", Secret: []byte("short")}} {
		value := string(encodeJSON(n))
		l := &origin{kind: ByMPICH, rank: 1, size: 2, localSize: 1, node: -1, local: -1, host: "localhost"}
		m := &meeting{cfg: &Config{}, l: l, deadline: time.Now().Add(patience), manager: toldManager{value: value}}
		if err := m.come(ctx); !errors.Is(err, ErrLauncher) || !strings.Contains(err.Error(), "where position 0 listens") {
			t.Errorf("%s: %v, want ErrLauncher", value, err)
		}
	}
}

func FuzzRoster(f *testing.F) {
	good, _ := newRoster([]card{{Protocol: 1, Rank: 0, Size: 2, Node: -1, Local: -1, Host: "a"}, {Protocol: 1, Rank: 1, Size: 2, Node: -1, Local: -1, Host: "b"}})
	f.Add(encodeJSON(good))
	f.Add(encodeJSON(card{Rank: 3}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if r, err := decodeJSON[roster](raw); err == nil && r.valid(2) == nil {
			if r.Seats[0].Position+r.Seats[1].Position != 1 || len(r.members()) != 2 {
				t.Fatalf("%+v", r)
			}
		}
		_, _ = decodeJSON[card](raw)
		_, _ = decodeJSON[[]fact](raw)
	})
}
