package launch

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"golang.org/x/sys/unix"
)

// process is one rank: a process group of its own, so that signals reach what
// it started.
type process struct {
	rank int
	pid  int
	self *os.Process
	over atomic.Bool
	// asked to end, before it was over
	asked atomic.Bool
}

func (p *process) isRunning() bool { return !p.over.Load() && !hasEnded(p.pid) }

func (p *process) signal(s syscall.Signal) {
	if p.over.Load() {
		return
	}
	if !hasEnded(p.pid) {
		p.asked.Store(true)
	}
	_ = syscall.Kill(-p.pid, s) // ESRCH: it has just ended
}

// startRank starts a rank, and what follows it to its end (follow).
func (j *job) startRank(rank int, env []string, secret []byte, alive, root *os.File) (*process, error) {
	cmd := exec.Command(j.program, j.cfg.Args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	secretRead, err := pipeOf(secret)
	if err != nil {
		return nil, err
	}
	defer secretRead.Close()
	pass := func(name string, f *os.File) {
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		env = append(env, name+"="+strconv.Itoa(2+len(cmd.ExtraFiles)))
	}
	pass(wire.EnvSecretFD, secretRead)
	pass(wire.EnvAliveFD, alive)
	in := &input{}
	if rank == 0 {
		pass(wire.EnvRootFD, root)
		if in, err = openInput(j.cfg.Stdin); err != nil {
			return nil, err
		}
		j.closers = append(j.closers, in)
		defer in.handedOver()
		if in.file != nil {
			cmd.Stdin = in.file
		}
	}
	cmd.Env = append(append(os.Environ(), j.cfg.Env...), env...)

	log := &rankLog{}
	if j.cfg.Tee != nil {
		if log.w, err = j.cfg.Tee(rank); err != nil {
			return nil, err
		}
		j.closers = append(j.closers, log)
	}
	o, err := newOutputPipes()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = o.write[0], o.write[1]
	err = cmd.Start()
	closeBoth(o.write)
	if err != nil {
		closeBoth(o.read)
		return nil, err
	}
	copied := j.copyOutput(rank, o, log)
	j.strays.held = !errors.Is(cmd.Process.WithHandle(func(uintptr) {}), os.ErrNoHandle)
	p := &process{rank: rank, pid: cmd.Process.Pid, self: cmd.Process}
	if j.guard != nil {
		j.guard.watch(p.pid)
	}
	go func() {
		x := j.follow(p, cmd)
		if rank == 0 {
			in.Close()
		}
		if x.cut = !j.awaitOutput(o, copied); !x.cut {
			x.Log = log.Close()
		}
		j.ended <- x
	}()
	return p, nil
}

// pipeOf is a pipe that holds the secret: neither the command line nor the environment shows it to other users.
func pipeOf(secret []byte) (*os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = write.Write(secret)
	write.Close()
	if err != nil {
		read.Close()
		return nil, err
	}
	return read, nil
}

// follow waits for the end of a rank and of what it has left behind.
func (j *job) follow(p *process, cmd *exec.Cmd) Exit {
	p.sweep(j.ends)
	if j.guard != nil {
		j.guard.unwatch(p.pid)
	}
	_ = cmd.Wait() // how it ended stands in ProcessState
	x := exitOf(p.rank, cmd.ProcessState)
	x.Ended = p.asked.Load()
	p.over.Store(true)
	return x
}

// sweep waits until the rank has ended, and ends what it has left behind in its group. Until the rank
// is waited for, its number stays that group's.
func (p *process) sweep(ends *ends) {
	over, reaped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reaped)
		p.reapOrphans(over)
	}()
	ends.await(p.self)
	close(over)
	<-reaped // while the group is surely the rank's
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
}

// reapOrphans waits, until over, for processes of the rank's group that have ended and are this process's children, since
// they have lost their parent: nobody else would wait for them, and they would stay zombies. The program's own children are
// not in that group.
func (p *process) reapOrphans(over <-chan struct{}) {
	look := time.NewTicker(reapEvery)
	defer look.Stop()
	for {
		select {
		case <-over:
			return
		case <-look.C:
		}
		for !hasEnded(p.pid) { // else it would be the one that is found
			var info unix.Siginfo
			err := unix.Waitid(unix.P_PGID, p.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
			pid := endedPID(&info)
			if err != nil || pid == 0 || pid == p.pid {
				break
			}
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// endedPID is the process of which waitid(2) tells: si_pid is the first field of a union that is aligned like a pointer.
func endedPID(info *unix.Siginfo) int {
	child := (*struct {
		signo, errno, code int32
		_                  [0]uintptr
		pid                int32
	})(unsafe.Pointer(info))
	return int(child.pid)
}

// lateOutput is how long the output of an ended rank may still come. What has come by then is taken, however slowly.
const lateOutput = time.Second

func exitOf(rank int, s *os.ProcessState) Exit {
	status, ok := s.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return Exit{Rank: rank, Code: 128 + int(status.Signal()), Signal: status.Signal()}
	}
	return Exit{Rank: rank, Code: s.ExitCode()}
}
