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
	"slices"
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

// zombies are this process's children that have ended, with the beginning of what stat(5) says of them.
func zombies(wanted func(pid int, group string) bool) (stats []string) {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		for _, w := range strings.Fields(string(text)) {
			pid, _ := strconv.Atoi(w)
			stat, _ := os.ReadFile("/proc/" + w + "/stat")
			fields := strings.Fields(string(stat)) // pid (name) state parent group
			if len(fields) >= 5 && fields[2] == "Z" && wanted(pid, fields[4]) {
				stats = append(stats, strings.Join(fields[:5], " "))
			}
		}
	}
	return stats
}

func needChildren(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children"); err != nil {
		t.Skip(err)
	}
}

// What ranks leave to itself while they run is waited for when it ends, but no child of the program's own.
func TestOrphansAreReaped(t *testing.T) {
	needChildren(t)
	own := exec.Command("true")
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	inGroups := func() []string {
		return zombies(func(_ int, group string) bool {
			_, err := os.Stat(filepath.Join(dir, "group"+group))
			return err == nil
		})
	}
	left := make(chan []string, 1)
	go func() {
		look := time.Tick(10 * time.Millisecond)
		for limit := time.Now().Add(time.Minute); time.Now().Before(limit); <-look {
			ready, _ := filepath.Glob(filepath.Join(dir, "ready*"))
			if len(ready) == 2 && len(inGroups()) == 0 { // a moment passes until each is waited for
				break
			}
		}
		left <- inGroups()
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

// What has left its rank's group and ended is waited for, while the job runs and at its end, and so is what is killed with the
// group; but no child of the program's own, whatever its session and group, also one that it has started meanwhile.
func TestStraysAreReaped(t *testing.T) {
	needChildren(t)
	before := zombies(func(int, string) bool { return true })
	dir := t.TempDir()
	await := func(what string, is func() bool) {
		look := time.Tick(10 * time.Millisecond)
		for limit := time.Now().Add(time.Minute); !is(); <-look {
			if time.Now().After(limit) {
				t.Errorf("%s: not within a minute", what)
				return
			}
		}
	}
	said := func(file string) func() bool {
		return func() bool {
			_, err := os.Stat(filepath.Join(dir, file))
			return err == nil
		}
	}
	var own []*exec.Cmd
	strays := func() []string {
		return zombies(func(pid int, _ string) bool {
			return !slices.ContainsFunc(own, func(c *exec.Cmd) bool { return c.Process.Pid == pid })
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer os.WriteFile(filepath.Join(dir, "over"), nil, 0o644)
		await("the beginning", said("begun"))
		for _, attr := range []*syscall.SysProcAttr{nil, {Setsid: true}, {Setpgid: true}} {
			cmd := exec.Command("true")
			cmd.SysProcAttr = attr
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			own = append(own, cmd)
			await("the end of an own child", func() bool { return hasEnded(cmd.Process.Pid) })
		}
		os.WriteFile(filepath.Join(dir, "go"), nil, 0o644)
		await("strays", said("left"))
		await("nothing left of the strays", func() bool { return len(strays()) == len(before) })
	}()
	// Each stray says when it has nothing left to do but to end. The last are there when the rank ends.
	o, _ := run(t, Config{Ranks: 1}, `cd `+dir+`; : >begun; until [ -e go ]; do sleep 0.01; done
		leave() {
			for i in 1 2 3 4 5; do (setsid sh -c ": >$1$i" &); done
			for i in 1 2 3 4 5; do until [ -e $1$i ]; do sleep 0.01; done; done
		}
		leave during; : >left; until [ -e over ]; do sleep 0.01; done; sleep 1000 & leave last; exit 3`)
	<-done
	if z := strays(); o.Code != 3 || len(z) > len(before) {
		t.Errorf("%+v; before %q, now %q", o, before, z)
	}
	for _, cmd := range own {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a child of the program's own, %+v: %v", cmd.SysProcAttr, err)
		}
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
