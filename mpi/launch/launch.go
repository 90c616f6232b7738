// Package launch starts the ranks of a job on this host and sees to it that they end: the first failure ends the rest, a
// launcher that ends takes its ranks with it, and no process is left behind. The exception is a process that has left its
// rank's group and cleared its environment (as by "setsid env -i"): nothing tells it from a process that another child of the
// program has started and left.
//
// Run makes the calling program a subreaper: processes that the ranks have started become its children when they lose their
// parent. Run kills those and waits for them. It leaves alone the children that the program itself has started before Run, in
// its own process group, or by package os, unless it has released them; but a child that a C library or [syscall.ForkExec]
// starts during Run, in another group, may be waited for by Run once it has ended. Without pidfds (before Linux 5.4), or
// where /proc does not show which processes they are for, a process that has left its rank's group and ends within a second
// may stay a zombie until the program ends.
package launch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"golang.org/x/sys/unix"
)

// Policy says what the end of one rank means for the others.
type Policy int

const (
	// EndAll: the first rank that fails ends the job.
	EndAll Policy = iota
	// Continue: the other ranks go on; they decide themselves whether they can.
	Continue
)

// Config describes a job.
type Config struct {
	Ranks   int
	Program string   // path, or a name looked up in PATH
	Args    []string // without the program's name
	Env     []string // added to this process's environment
	Policy  Policy

	// Stdin goes to rank 0; nil is an empty input. A file is handed over as it is. The session's terminal, and readers that
	// are no files, are read ahead instead, whether or not rank 0 wants it, and a Read that is under way when rank 0 ends is
	// not waited for. Stdout and Stderr receive what the ranks print, whole lines at a time; they may be the same writer,
	// whose Write is then called by one goroutine at a time. If Write blocks (a full pipe, a stopped terminal) and the ranks
	// have been killed, Run returns a few seconds later without waiting for it. The rest of the output is dropped, and Write
	// is not called again.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Label is what stands before each line.
	Label Label
	// Tee, if set, receives all output of a rank as well (its log file). It is closed when the rank
	// is over; see Exit.Log.
	Tee func(rank int) (io.WriteCloser, error)

	// Timeout ends the job with exit code 124, unless it is ending already; 0 is none.
	Timeout time.Duration
	// Patience is how long, under EndAll, the other ranks have to end by
	// themselves after the first failure, with messages of their own. 0 is not at all.
	Patience time.Duration
	// Grace is how long ranks have between SIGTERM and SIGKILL. 0 is 5 s.
	Grace time.Duration
	// Guard is the command that runs RunGuard, so that the ranks end, with all
	// they started, even if this process is killed by SIGKILL. Empty: only the ranks
	// themselves end then.
	Guard []string
	// Notify is told, in order, what happens: failures, signals, processes that do not end. The job goes on meanwhile, and once ranks have
	// been killed a call that does not return is not waited for. May be nil.
	Notify func(message string)
	// Interrupts carries requests to stop, such as SIGINT and SIGTERM of this process: the first is
	// graceful (SIGTERM to the ranks), also when they are ending for another reason; the second kills.
	// May be nil.
	Interrupts <-chan syscall.Signal
	// Forward carries signals that the ranks act on, such as SIGUSR1. Only the ranks themselves get them: processes that
	// they have started would die of them. May be nil.
	Forward <-chan os.Signal
}

// Label says how lines of output are marked with their rank.
type Label int

const (
	Plain  Label = iota
	ByRank       // "3: line", as srun -l prints it
)

// ErrStart: a rank could not be started; none is left running.
var ErrStart = errors.New("launch: cannot start")

// ErrRanks: the number of ranks is too small or too large.
var ErrRanks = fmt.Errorf("want 1 to %d", MaxRanks)

// MaxRanks is the largest number of ranks: no host of today has the memory and the processes for more.
const MaxRanks = 1 << 16

const defaultGrace = 5 * time.Second

// Run starts cfg.Ranks processes on this host and waits until all have ended.
// When ctx ends they are ended too. What they leave behind, and the guard, have 5 s each to end once they have
// been told to; then Run returns without them, and Notify hears of it.
func Run(ctx context.Context, cfg Config) (Outcome, error) {
	if cfg.Ranks < 1 || cfg.Ranks > MaxRanks {
		return Outcome{}, fmt.Errorf("%w: %d ranks: %w", ErrStart, cfg.Ranks, ErrRanks)
	}
	program, err := exec.LookPath(cfg.Program)
	if err != nil {
		return Outcome{}, fmt.Errorf("%w %q: %w", ErrStart, cfg.Program, err)
	}
	if cfg.Grace <= 0 {
		cfg.Grace = defaultGrace
	}
	if cfg.Notify == nil {
		cfg.Notify = func(string) {}
	}
	j := &job{cfg: cfg, name: fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano()), program: program, ended: make(chan Exit, cfg.Ranks), exits: make([]Exit, cfg.Ranks), killed: make(chan struct{})}
	j.strays = newStrays(j.name)
	j.out, j.errs = newOutputs(cfg.Stdout, cfg.Stderr)
	defer j.cleanUp()
	// The parent-death signal follows the thread that forks: all ranks are
	// started and waited for from this one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := j.start(); err != nil {
		j.kill()
		for range j.procs {
			<-j.ended
		}
		return Outcome{}, errors.Join(append([]error{err}, j.endRest()...)...)
	}
	return j.wait(ctx), nil
}

type job struct {
	cfg     Config
	name    string // unique on this host
	program string
	procs   []*process
	ended   chan Exit
	exits   []Exit
	hurry   sync.Once
	killed  chan struct{} // closed when the ranks have been killed
	alive   *os.File      // write end: its closing tells the ranks that we are gone
	guard   *guard
	strays  *strays
	ends    *ends
	closers []io.Closer
	out     *lines
	errs    *lines
}

func (j *job) cleanUp() {
	j.out.over.Store(true)
	j.errs.over.Store(true)
	for _, c := range j.closers {
		c.Close()
	}
}

// endRest ends what there is besides the ranks, which have ended. The guard is the last: it sees to the others for as long
// as there are any. The errors are what could not be ended as it should.
func (j *job) endRest() (errs []error) {
	errs = append(errs, j.strays.end())
	if j.guard != nil {
		errs = append(errs, j.guard.dismiss())
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func (j *job) start() error {
	secret := make([]byte, wire.SecretBytes)
	if _, err := rand.Read(secret); err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	// Processes whose parent ends become children of this one, so that none can escape by starting a daemon.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // old kernels: only direct children are ended

	root, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("%w: a port for rank 0: %w", ErrStart, err)
	}
	defer root.Close()
	rootFile, err := root.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	defer rootFile.Close()

	aliveRead, aliveWrite, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	defer aliveRead.Close()
	j.alive = aliveWrite
	j.closers = append(j.closers, aliveWrite)

	if j.ends, err = watchEnds(); err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	j.closers = append(j.closers, j.ends)

	if len(j.cfg.Guard) > 0 {
		if j.guard, err = startGuard(j.cfg.Guard, j.name); err != nil {
			return fmt.Errorf("%w: guard: %w", ErrStart, err)
		}
	}
	for rank := range j.cfg.Ranks {
		env := []string{
			wire.EnvRank + "=" + strconv.Itoa(rank),
			wire.EnvSize + "=" + strconv.Itoa(j.cfg.Ranks),
			wire.EnvLocalRank + "=" + strconv.Itoa(rank),
			wire.EnvLocalSize + "=" + strconv.Itoa(j.cfg.Ranks),
			wire.EnvJob + "=" + j.name,
			wire.EnvRoot + "=" + root.Addr().String(),
			wire.EnvRestart + "=0",
		}
		p, err := j.startRank(rank, env, secret, aliveRead, rootFile)
		if err != nil {
			return fmt.Errorf("%w rank %d (%s): %w", ErrStart, rank, j.program, err)
		}
		j.procs = append(j.procs, p)
	}
	j.strays.reap(j.procs)
	return nil
}

// signal sends s to every rank that is still there, and to what it started.
func (j *job) signal(s syscall.Signal) {
	for _, p := range j.procs {
		p.signal(s)
	}
}

// kill ends at once every rank that is still there, and soon the waiting for output that nobody takes.
func (j *job) kill() {
	j.signal(syscall.SIGKILL)
	j.hurry.Do(func() { close(j.killed) })
}

// running is how many ranks have not ended.
func (j *job) running() int {
	n := 0
	for _, p := range j.procs {
		if p.isRunning() {
			n++
		}
	}
	return n
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return name
}
