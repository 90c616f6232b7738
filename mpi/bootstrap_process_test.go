package mpi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/testlog"
	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// These tests start real processes: this test binary again, running
// TestBootstrapRank alone, which is a rank that goes through bootstrap and tree and does as
// its standard input says. It reports by lines:
//
//	ready RANK POSITION HOST,HOST,...   in rank order
//	failed ERROR                        and ends
//	lost RANK WHY
//	parted ERROR                        after "bye"

const rankVariable = "FISTERRA_TEST_BOOTSTRAP"

func TestBootstrapRank(t *testing.T) {
	options, ok := os.LookupEnv(rankVariable)
	if !ok {
		t.Skip("a rank of the other tests")
	}
	var orders io.Reader = os.Stdin
	var lostInterface string
	cfg := &Config{StartTimeout: 2 * time.Minute, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	for option := range strings.FieldsSeq(options) {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "peer-timeout":
			cfg.PeerTimeout, _ = time.ParseDuration(value)
		case "start-timeout":
			cfg.StartTimeout, _ = time.ParseDuration(value)
		case "order": // where standard input is not this rank's
			orders = strings.NewReader(value)
		case "secret-dir":
			cfg.SecretDir = value
		case "lost-interface": // the rank that has none of the name
			lostInterface = value
		default:
			cfg.Layout = append(cfg.Layout, LayoutField{key, value})
		}
	}
	l, err := detect(cfg.lookup())
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(0)
	}
	if lostInterface == fmt.Sprint(l.rank) {
		cfg.AddressRule = "nosuch0"
	}
	playRank(cfg, l, orders)
	os.Exit(0)
}

type printer struct{}

func (printer) PeerLost(rank int, why string) { fmt.Println("lost", rank, why) }

func playRank(cfg *Config, l *origin, in io.Reader) {
	ctx := context.Background()
	m, err := meet(ctx, cfg, l)
	var tr *tree
	var r *roster
	if err == nil {
		tr, r, err = m.agree(ctx, map[string][]byte{"test": fmt.Appendf(nil, "address of %d", l.rank)})
	}
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	var hosts []string
	for i, s := range r.Seats {
		hosts = append(hosts, s.Host)
		if want := fmt.Sprintf("address of %d", i); string(s.Addresses["test"]) != want {
			fmt.Println("failed: address", s.Addresses)
		}
	}
	fmt.Println("ready", l.rank, r.Seats[l.rank].Position, strings.Join(hosts, ","))
	tr.Start(printer{})
	for orders := bufio.NewScanner(in); orders.Scan(); {
		switch word, rest, _ := strings.Cut(orders.Text(), " "); word {
		case "bye":
			wait, _ := time.ParseDuration(rest)
			if rest == "" {
				wait = time.Minute
			}
			ctx, cancel := context.WithTimeout(ctx, wait)
			fmt.Println("parted", tr.Bye(ctx))
			cancel()
			tr.Close()
			return
		case "hear": // tells when a rank's goodbye has come
			rank, _ := strconv.Atoi(rest)
			for look := time.Tick(time.Millisecond); !tr.heardBye(rank); {
				<-look
			}
			fmt.Println("heard", rank)
		case "abort":
			tr.Abort(3, rest)
			return
		}
	}
}

func (t *tree) heardBye(rank int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.left[rank]
}

// proc is such a process.
type proc struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	rank  int
	mu    sync.Mutex
	lines []string
	more  chan struct{}
	errs  testlog.Buffer
}

// start starts a rank as cmd says, with these inherited files from 3 on.
func start(t *testing.T, rank int, cmd *exec.Cmd, env []string, files ...*os.File) *proc {
	t.Helper()
	p := &proc{cmd: cmd, rank: rank, more: make(chan struct{}, 1)}
	cmd.Env = append(cmd.Environ(), env...)
	cmd.ExtraFiles = files
	cmd.Stderr = &p.errs
	p.in, _ = cmd.StdinPipe()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
			select {
			case p.more <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(func() {
		p.in.Close()
		cmd.Process.Signal(syscall.SIGCONT)
		cmd.Process.Kill()
		<-read
		cmd.Wait()
		if t.Failed() {
			p.mu.Lock()
			t.Logf("rank %d said:\n%s\nlog:\n%s", rank, strings.Join(p.lines, "\n"), p.errs.String())
			p.mu.Unlock()
		}
	})
	return p
}

func (p *proc) order(text string) { fmt.Fprintln(p.in, text) }

// await returns the first line that begins so.
func (p *proc) await(t *testing.T, prefix string, within time.Duration) string {
	t.Helper()
	line, said := p.says(prefix, within)
	if !said {
		t.Fatalf("rank %d did not say %q within %v", p.rank, prefix, within)
	}
	return line
}

// says waits for a line that begins so.
func (p *proc) says(prefix string, within time.Duration) (line string, said bool) {
	deadline := time.After(within)
	for {
		p.mu.Lock()
		i := slices.IndexFunc(p.lines, func(line string) bool { return strings.HasPrefix(line, prefix) })
		if i >= 0 {
			line = p.lines[i]
		}
		p.mu.Unlock()
		if i >= 0 {
			return line, true
		}
		select {
		case <-p.more:
		case <-deadline:
			return "", false
		}
	}
}

func (p *proc) said(prefix string) bool { return p.times(prefix) > 0 }

// times counts the lines so far that begin so.
func (p *proc) times(prefix string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, line := range p.lines {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

func ownBinary() *exec.Cmd { return exec.Command(os.Args[0], "-test.run=^TestBootstrapRank$") }

// secretPipe is the descriptor that a launcher would pass on.
func secretPipe(t *testing.T, secret []byte) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.Write(secret)
	w.Close()
	t.Cleanup(func() { r.Close() })
	return r
}

// job starts n ranks as Fisterra's launcher does. What opts says counts, and else a peer timeout that is longer than
// a busy machine forgets a rank that lives.
type job struct {
	root   *net.TCPListener
	secret []byte
	env    func(rank int) []string // more environment
	opts   func(rank int) string   // of playRank
}

func newJob(t *testing.T) *job {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return &job{root: listener.(*net.TCPListener), secret: wire.NewSecret(), opts: func(int) string { return "peer-timeout=20s" }}
}

func (j *job) start(t *testing.T, rank, size int) *proc {
	t.Helper()
	files := []*os.File{secretPipe(t, j.secret)}
	env := []string{
		fmt.Sprintf("%s=%d", wire.EnvRank, rank), fmt.Sprintf("%s=%d", wire.EnvSize, size),
		fmt.Sprintf("%s=%d", wire.EnvLocalRank, rank), fmt.Sprintf("%s=%d", wire.EnvLocalSize, size),
		wire.EnvJob + "=test", wire.EnvRoot + "=" + j.root.Addr().String(), wire.EnvSecretFD + "=3",
		rankVariable + "=" + j.opts(rank),
	}
	if rank == 0 {
		f, err := j.root.File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
		env = append(env, wire.EnvRootFD+"=4")
	}
	if j.env != nil {
		env = append(env, j.env(rank)...)
	}
	return start(t, rank, ownBinary(), env, files...)
}

func (j *job) startAll(t *testing.T, size int) []*proc {
	t.Helper()
	procs := make([]*proc, size)
	for rank := range procs {
		procs[rank] = j.start(t, rank, size)
	}
	return procs
}

func awaitAll(t *testing.T, procs []*proc, prefix string, within time.Duration) {
	t.Helper()
	for _, p := range procs {
		if p != nil {
			p.await(t, prefix, within)
		}
	}
}

func orderAll(procs []*proc, text string) {
	for _, p := range procs {
		if p != nil {
			p.order(text)
		}
	}
}
