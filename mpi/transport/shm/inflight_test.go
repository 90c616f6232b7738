package shm

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/testlog"
)

const inFlightVariable = "FISTERRA_TEST_SHM_IN_FLIGHT"

// TestTooManyInFlight: ranks whose user may not send descriptors for a while meet later, and a
// question for memory fails meanwhile, nothing else.
func TestTooManyInFlight(t *testing.T) {
	if _, inside := os.LookupEnv(inFlightVariable); !inside {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inFlightVariable+"=")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if os.Getuid() == 0 { // who may have any number in flight
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	const most = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	mine, theirs := socketPair(t)
	var log testlog.Buffer
	rs := openWorld(t, 2, func(cfg *Config) {
		cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})

	stuff(t, mine, rs[0].bell.bell, most+1)
	rs[0].mu.Lock()
	rs[0].endpoint(1).meet()
	err := rs[0].until(func() bool { return strings.Contains(log.String(), "cannot be sent yet") || len(rs[0].lost) > 0 })
	rs[0].mu.Unlock()
	if err != nil || len(rs[0].lost) > 0 {
		t.Fatalf("while too many are in flight: %v, lost %v", err, rs[0].lost)
	}
	drain(t, theirs)
	meetAll(t, rs)

	handle := exportSegment(t, rs[1], importBytes)
	stuff(t, mine, rs[0].bell.bell, most+1)
	if _, err := rs[0].Import(t.Context(), 1, handle); err == nil || !strings.Contains(err.Error(), "too many descriptors in flight") {
		t.Errorf("an Import while too many are in flight: %v", err)
	}
	drain(t, theirs)
	mem, err := rs[0].Import(t.Context(), 1, handle)
	for deadline := time.Now().Add(patience); err != nil && strings.Contains(err.Error(), "in flight") && time.Now().Before(deadline); { // of another process
		mem, err = rs[0].Import(t.Context(), 1, handle)
	}
	if err == nil {
		err = Unmap(mem)
	}
	if err != nil {
		t.Errorf("an Import later: %v", err)
	}
	for i, r := range rs {
		r.mu.Lock()
		r.Poll(r)
		r.mu.Unlock()
		if len(r.lost) > 0 {
			t.Errorf("rank %d has lost %v", i, r.lost)
		}
	}
}

// stuff sends n descriptors that nobody receives, after which no other can be sent.
func stuff(t *testing.T, conn *net.UnixConn, fd, n int) {
	t.Helper()
	err := writePacket(conn, []byte{0}, slices.Repeat([]int{fd}, n)...)
	for deadline := time.Now().Add(patience); errors.Is(err, unix.ETOOMANYREFS) && time.Now().Before(deadline); { // by another process
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		err = writePacket(conn, []byte{0}, slices.Repeat([]int{fd}, n)...)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := sendPacket(conn, []byte{0}, fd); !errors.Is(err, unix.ETOOMANYREFS) {
		t.Fatalf("one descriptor more than %d in flight: %v", n, err)
	}
}

// drain receives what stuff has sent.
func drain(t *testing.T, conn *net.UnixConn) {
	t.Helper()
	_, fds, err := readPacket(conn, make([]byte, 1))
	if err != nil {
		t.Fatal(err)
	}
	closeAll(fds)
}
