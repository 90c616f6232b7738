package launch

// What is left of a job when its ranks, or the launcher itself, have gone.

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Either way to wait for a child leaves it to be waited for.
func TestAwaitEnd(t *testing.T) {
	ends, err := watchEnds()
	if err != nil {
		t.Fatal(err)
	}
	defer ends.Close()
	for name, await := range map[string]func(*os.Process){"watching": ends.await, "looking": func(p *os.Process) { awaitByLooking(p.Pid) }} {
		cmd := exec.Command("cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if hasEnded(cmd.Process.Pid) {
			t.Errorf("%s: cat has ended before its input", name)
		}
		in.Close()
		await(cmd.Process)
		if err := cmd.Wait(); err != nil || !cmd.ProcessState.Exited() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What ranks leave to itself while they run is waited for when it ends, but no child of the program's own.
func TestOrphansAreReaped(t *testing.T) {
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children"); err != nil {
		t.Skip(err)
	}
	own := exec.Command("true")
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	zombies := func() (stats []string) { // in the ranks' groups
		files, _ := filepath.Glob("/proc/self/task/*/children")
		for _, f := range files {
			text, _ := os.ReadFile(f)
			for _, pid := range strings.Fields(string(text)) {
				stat, _ := os.ReadFile("/proc/" + pid + "/stat")
				fields := strings.Fields(string(stat)) // pid (name) state parent group
				if len(fields) < 5 || fields[2] != "Z" {
					continue
				}
				if _, err := os.Stat(filepath.Join(dir, "group"+fields[4])); err == nil {
					stats = append(stats, strings.Join(fields[:5], " "))
				}
			}
		}
		return stats
	}
	left := make(chan []string, 1)
	go func() {
		look := time.Tick(10 * time.Millisecond)
		for limit := time.Now().Add(time.Minute); time.Now().Before(limit); <-look {
			ready, _ := filepath.Glob(filepath.Join(dir, "ready*"))
			if len(ready) == 2 && len(zombies()) == 0 { // a moment passes until each is waited for
				break
			}
		}
		left <- zombies()
		os.WriteFile(filepath.Join(dir, "over"), nil, 0o644)
	}()
	o, _ := run(t, Config{Ranks: 2}, `cd `+dir+`; : >group$$; for i in $(seq 50); do (sleep 0.1 &) ; done; sleep 0.5; : >ready$$
		until [ -e over ]; do sleep 0.01; done; exit 3`)
	if z := <-left; len(z) > 0 {
		t.Errorf("%d orphans have ended and are not waited for: %q", len(z), z)
	}
	if err := own.Wait(); err != nil || o.Code != 3 || o.First == nil {
		t.Errorf("%+v; the program's own child: %v", o, err)
	}
}

// TestLauncherKilled kills the launcher by SIGKILL: its ranks end, and what
// they have started, too, also in sessions of its own.
func TestLauncherKilled(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LAUNCH_TEST_ROLE=launcher", "LAUNCH_TEST_SCRIPT=echo $$; sleep 1000 & echo $!; setsid sleep 1000 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids strings.Builder
	buf := make([]byte, 1024)
	for strings.Count(pids.String(), "\n") < 6 {
		n, err := out.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, pids.String())
		}
		pids.Write(buf[:n])
	}
	cmd.Process.Kill()
	cmd.Wait()
	expectGone(t, pids.String())
}

// The guard kills the groups that are still there, and not those that have ended: their numbers may be others' by then.
func TestGuardForgetsWhatHasEnded(t *testing.T) {
	group := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		return cmd
	}
	first, second := group(), group()
	RunGuard(strings.NewReader(fmt.Sprintf("job\n%d\n%d\n%d\n", first.Process.Pid, second.Process.Pid, -first.Process.Pid)))
	second.Wait()
	if err := first.Process.Signal(syscall.Signal(0)); err != nil || second.ProcessState.Success() {
		t.Errorf("the group that is over: %v; the other: %v", err, second.ProcessState)
	}
}

// The launcher tells its guard of the ranks that have ended.
func TestGuardIsToldOfTheEnd(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	run(t, Config{Ranks: 2, Guard: []string{"sh", "-c", "cat >" + said}}, "true")
	b, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	there := map[int]bool{}
	_, pids, _ := strings.Cut(string(b), "\n") // after the job's name
	for _, l := range strings.Fields(strings.TrimSuffix(pids, farewell+"\n")) {
		pid, err := strconv.Atoi(l)
		if err != nil || pid > 0 == there[max(pid, -pid)] {
			t.Fatalf("the guard was told %q", b)
		}
		there[max(pid, -pid)] = pid > 0
	}
	if len(there) != 2 || there[0] {
		t.Errorf("the guard was told %q", b)
	}
	for pid, left := range there {
		if left {
			t.Errorf("the guard was not told of the end of %d", pid)
		}
	}
}

// number is the process number in a file that appears as a whole, or 0.
func number(file string) int {
	b, _ := os.ReadFile(file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

// A guard that has been stopped keeps no job: it is killed, and somebody hears of it.
func TestStoppedGuardDoesNotKeepTheJob(t *testing.T) {
	file := filepath.Join(t.TempDir(), "guard")
	defer time.AfterFunc(time.Minute, func() {
		t.Error("the job waits for a guard that has been stopped")
		syscall.Kill(number(file), syscall.SIGKILL)
	}).Stop()
	var said []string
	o, _ := run(t, Config{
		Ranks: 1, Notify: func(s string) { said = append(said, s) },
		Guard: []string{"sh", "-c", "echo $$ >" + file + "; kill -STOP $$"},
	}, "until [ -s "+file+" ]; do sleep 0.01; done")
	if want := fmt.Sprintf("process %d ", number(file)); o.Code != 0 || len(said) != 1 || !strings.Contains(said[0], want) || !strings.Contains(said[0], "killed") {
		t.Errorf("%+v, said %q: want %q", o, said, want)
	}
}

// Nor does it keep one by taking none of the words that tell it of ranks.
func TestDeafGuardIsKilled(t *testing.T) {
	g, err := startGuard([]string{"sh", "-c", "kill -STOP $$"}, "job")
	if err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(time.Minute, func() {
		t.Error("a guard is waited for that takes nothing")
		g.cmd.Process.Kill()
	}).Stop()
	for range 1 << 16 { // more than a pipe holds
		g.watch(os.Getpid())
	}
	if err := g.dismiss(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", g.cmd.Process.Pid)) {
		t.Errorf("%v: want the number of the guard, %d", err, g.cmd.Process.Pid)
	}
}

// trace traces the process of which it reads, says why not if it cannot, and holds it until its input ends. Who has
// lost its life is left then to whoever traces it, and waited for by nobody else.
func trace() {
	runtime.LockOSThread()
	in := bufio.NewReader(os.Stdin)
	var pid int
	fmt.Fscanln(in, &pid)
	if err := unix.PtraceSeize(pid); err != nil {
		fmt.Println(err)
	} else {
		fmt.Println("traced")
	}
	io.Copy(io.Discard, in)
}

// What a rank has left behind and cannot be waited for keeps no job: somebody hears of it.
func TestOrphanThatDoesNotEndDoesNotKeepTheJob(t *testing.T) {
	tracer := exec.Command(os.Args[0])
	tracer.Env = append(os.Environ(), "LAUNCH_TEST_ROLE=tracer")
	orders, err := tracer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := tracer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	defer tracer.Wait()
	defer orders.Close()
	dir := t.TempDir()
	answered := make(chan string, 1)
	go func() {
		look := time.Tick(10 * time.Millisecond)
		for limit := time.Now().Add(time.Minute); number(filepath.Join(dir, "orphan")) == 0 && time.Now().Before(limit); {
			<-look
		}
		fmt.Fprintln(orders, number(filepath.Join(dir, "orphan")))
		answer, _ := bufio.NewReader(answers).ReadString('\n')
		answered <- strings.TrimSpace(answer)
		os.WriteFile(filepath.Join(dir, "over"), nil, 0o644)
	}()
	defer time.AfterFunc(time.Minute, func() {
		t.Error("the job waits for a process that does not end")
		orders.Close()
	}).Stop()
	var said []string
	o, _ := run(t, Config{Ranks: 1, Notify: func(s string) { said = append(said, s) }},
		`cd `+dir+`; setsid sh -c 'echo $$ >new; mv new orphan; exec sleep 1000' >/dev/null 2>&1 & until [ -e over ]; do sleep 0.01; done`)
	if answer := <-answered; answer != "traced" {
		t.Skipf("no process can be traced here: %s", answer)
	}
	pid := number(filepath.Join(dir, "orphan"))
	if want := fmt.Sprintf("processes [%d] ", pid); o.Code != 0 || len(said) != 1 || !strings.Contains(said[0], want) {
		t.Errorf("%+v, said %q: want %q", o, said, want)
	}
	orders.Close()
	if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
		t.Errorf("process %d is not left to this program: %v", pid, err)
	}
}
