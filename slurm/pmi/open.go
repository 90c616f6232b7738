package pmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/slurm"
)

// Present reports whether the environment names a process manager.
func Present(lookup Lookup) bool {
	for _, name := range []string{"PMI_FD", "PMI_PORT"} {
		if v, ok := lookup(name); ok && v != "" {
			return true
		}
	}
	return false
}

// Open reaches the process manager that started this process: over the socket
// that PMI_FD names, which it takes over and closes on exec, or by dialling
// PMI_PORT. Without either the error is ErrAbsent.
//
// Only one client may be opened in the life of a process, and only by the process
// that was started, not by its children: PMI_FD then names nothing, or something
// else, which is ErrNotOpen.
func Open(ctx context.Context, lookup Lookup, cfg Config) (*Client, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.FenceTimeout == 0 {
		cfg.FenceTimeout = 5 * time.Minute
	}
	fail := func(err error) (*Client, error) { return nil, &Error{Op: "open", Err: err} }
	e := environment{lookup}
	version, err := e.version(cfg.Version)
	if err != nil {
		return fail(err)
	}
	var l *link
	var who identity
	if fd := e.get("PMI_FD"); fd != "" {
		if who, err = e.identity(); err != nil {
			return fail(err)
		}
		conn, err := inherited(fd)
		if err != nil {
			return fail(err)
		}
		l = newLink(conn)
	} else if address := e.get("PMI_PORT"); address != "" {
		if l, who, err = e.dial(ctx, address, cfg.Timeout); err != nil {
			return fail(err)
		}
	} else {
		return fail(ErrAbsent)
	}
	c := &Client{cfg: cfg, link: l, put: make(map[string]bool)}
	if version == 2 {
		c.protocol = &protocol2{link: l}
	} else {
		c.protocol = &protocol1{link: l}
	}
	if err = l.within(ctx, cfg.Timeout, func() error {
		c.who, err = c.protocol.start(who)
		return err
	}); err == nil && (c.who.size < 1 || c.who.rank < 0 || c.who.rank >= c.who.size) {
		err = fmt.Errorf("%w: rank %d of %d", ErrProtocol, c.who.rank, c.who.size)
	}
	if err != nil {
		return fail(errors.Join(err, l.conn.Close()))
	}
	return c, nil
}

type environment struct{ lookup Lookup }

func (e environment) get(name string) string {
	v, _ := e.lookup(name)
	return v
}

// version chooses the protocol: the forced one, else by who serves. Under Slurm PMI_JOBID is JOB.STEP. Ranks of
// Hydra's daemons inherit that, and SLURM_MPI_TYPE, so they are told apart first.
func (e environment) version(forced int) (int, error) {
	switch {
	case forced == 1 || forced == 2:
		return forced, nil
	case forced != 0:
		return 0, fmt.Errorf("%w: version %d, there are 1 and 2", ErrEnvironment, forced)
	case e.ofAnother():
	case e.get("SLURM_MPI_TYPE") == "pmi2", strings.Contains(e.get("PMI_JOBID"), "."):
		return 2, nil
	}
	return 1, nil
}

// ofAnother reports whether Slurm's variables belong to another launcher's daemons, or to a shell in which that
// launcher was started: an interactive shell of salloc has the site's SLURM_MPI_TYPE, but no process manager serves
// it.
func (e environment) ofAnother() bool {
	_, err := slurm.FromEnv(e.lookup)
	return errors.Is(err, slurm.ErrDaemonStep) || errors.Is(err, slurm.ErrNoStep)
}

// identity reads who we are where the launcher says it by variables.
func (e environment) identity() (identity, error) {
	rank, err := e.number("PMI_RANK")
	if err != nil {
		return identity{}, err
	}
	size, err := e.number("PMI_SIZE")
	if err != nil {
		return identity{}, err
	}
	if rank >= size {
		return identity{}, fmt.Errorf("%w: PMI_RANK=%d with PMI_SIZE=%d", ErrEnvironment, rank, size)
	}
	return identity{rank: rank, size: size, job: e.get("PMI_JOBID")}, nil
}

func (e environment) number(name string) (int, error) {
	text := e.get(name)
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%w: %s=%q, want a number", ErrEnvironment, name, text)
	}
	return int(n), nil
}

// inherited takes over the launcher's socket.
func inherited(text string) (connection, error) {
	fd, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return nil, fmt.Errorf("%w: PMI_FD=%q, want a number", ErrEnvironment, text)
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(int(fd), &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return nil, fmt.Errorf("%w: PMI_FD=%d; the client was opened before, or this process was not started by the launcher itself", ErrNotOpen, fd)
	}
	// Children must not keep the socket open: the launcher takes its closing for the end of this process.
	syscall.CloseOnExec(int(fd))
	// Only a non-blocking descriptor can have deadlines.
	if err := syscall.SetNonblock(int(fd), true); err != nil {
		return nil, fmt.Errorf("PMI_FD=%d: %w", fd, err)
	}
	f := os.NewFile(uintptr(fd), "PMI_FD")
	if err := f.SetDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("PMI_FD=%d: %w", fd, err), f.Close())
	}
	return f, nil
}

// dial reaches a server that serves over TCP.
func (e environment) dial(ctx context.Context, address string, timeout time.Duration) (*link, identity, error) {
	id, err := e.number("PMI_ID")
	if err != nil {
		return nil, identity{}, err
	}
	d := net.Dialer{Timeout: timeout}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, identity{}, fmt.Errorf("PMI_PORT=%s: %w", address, err)
	}
	l := newLink(conn)
	who := identity{job: e.get("PMI_JOBID")}
	if err := l.within(ctx, timeout, func() error {
		who.rank, who.size, err = l.identify(id)
		return err
	}); err != nil {
		return nil, who, errors.Join(err, conn.Close())
	}
	return l, who, nil
}
