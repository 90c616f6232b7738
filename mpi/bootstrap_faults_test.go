package mpi

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Ranks that die, stop or fall silent while the others run, or say goodbye: every other one hears of it, by name.

func TestBootstrapRootDies(t *testing.T) {
	procs := newJob(t).startAll(t, 4)
	awaitAll(t, procs, "ready", patience)
	procs[0].cmd.Process.Kill()
	awaitAll(t, procs[1:], "lost 0 its process ended", patience)
	procs[1].cmd.Process.Kill() // which the others hang below by now, or soon
	awaitAll(t, procs[2:], "lost 1", patience)
	orderAll(procs[2:], "bye 1m")
	for _, p := range procs[2:] {
		if line := p.await(t, "parted", patience); line != "parted <nil>" {
			t.Errorf("rank %d: %s", p.rank, line)
		}
	}
}

// A stopped rank is lost after the peer timeout, and learns of it when it goes on.
func TestBootstrapStoppedRank(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.opts = func(int) string { return "peer-timeout=15s" } // longer than a busy machine forgets a rank that lives
	procs := j.startAll(t, 3)
	awaitAll(t, procs, "ready", patience)
	stop(t, procs[2])
	for _, p := range procs[:2] {
		p.await(t, "lost 2 no sign of life", patience)
	}
	resume(t, procs[2])
	procs[2].await(t, "lost 0", patience)
	procs[2].await(t, "lost 1", patience)
	if procs[0].said("lost 1") || procs[1].said("lost 0") {
		t.Error("the rank that had been stopped took others with it")
	}
}

// Without heartbeats a rank that stands still is waited for, also by those that come to it because the rank that
// they hung below is gone.
func TestBootstrapStoppedParent(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.opts = func(int) string { return "peer-timeout=-1s" }
	procs := j.startAll(t, 4)
	awaitAll(t, procs, "ready", patience)
	stop(t, procs[1])
	procs[0].cmd.Process.Kill()
	awaitAll(t, procs[2:], "lost 0 its process ended", patience)
	if line, said := procs[2].says("lost 1", 2*defaultPeerTimeout); said { // nothing is to happen
		t.Errorf("rank 2: %s", line)
	}
	resume(t, procs[1])
	orderAll(procs[1:], "bye 1m") // which reaches all by way of rank 1
	for _, p := range procs[1:] {
		if line := p.await(t, "parted", patience); line != "parted <nil>" || p.times("lost") != 1 {
			t.Errorf("rank %d: %s, %d losses, want 1", p.rank, line, p.times("lost"))
		}
	}
}

// A stop shorter than the timeout is ridden through.
func TestBootstrapShortStop(t *testing.T) {
	j := newJob(t)
	procs := j.startAll(t, 3)
	awaitAll(t, procs, "ready", patience)
	for _, p := range procs {
		stop(t, p)
		resume(t, p)
	}
	orderAll(procs, "bye 1m")
	for _, p := range procs {
		if line := p.await(t, "parted", patience); line != "parted <nil>" || p.said("lost") {
			t.Errorf("rank %d: %s", p.rank, line)
		}
	}
}

func stop(t *testing.T, p *proc) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, p *proc) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

func TestBootstrapAbort(t *testing.T) {
	procs := newJob(t).startAll(t, 3)
	awaitAll(t, procs, "ready", patience)
	procs[1].order("abort the loss is not a number")
	for _, rank := range []int{0, 2} {
		procs[rank].await(t, "lost 1 it aborted with exit code 3: the loss is not a number", patience)
	}
}

// A goodbye that others do not return in time names them.
func TestBootstrapByeNamesMissing(t *testing.T) {
	procs := newJob(t).startAll(t, 3)
	awaitAll(t, procs, "ready", patience)
	procs[0].order("bye 300ms")
	if line := procs[0].await(t, "parted", patience); !strings.Contains(line, "goodbye of ranks 1,2") {
		t.Error(line)
	}
}

// Who says goodbye and ends before the others have is lost to them, also where nothing but the tree connects
// them: they may wait for its messages. The goodbyes of the others go on.
func TestBootstrapGoneEarly(t *testing.T) {
	for _, gone := range []int{0, 2} {
		procs := newJob(t).startAll(t, 3)
		awaitAll(t, procs, "ready", patience)
		procs[gone].order("bye 300ms")
		procs[gone].await(t, "parted", patience)
		others := slices.DeleteFunc(procs, func(p *proc) bool { return p.rank == gone })
		awaitAll(t, others, fmt.Sprintf("lost %d it said goodbye and ended before the others had", gone), patience)
		orderAll(others, "bye 1m")
		for _, p := range others {
			if line := p.await(t, "parted", patience); line != "parted <nil>" || p.times("lost") != 1 {
				t.Errorf("rank %d: %s, %d losses, want 1", p.rank, line, p.times("lost"))
			}
		}
	}
}

// A rank that stands still for too long after its goodbye is lost, too, and what it takes for lost when it goes on is not:
// neither whom it hung below, nor, by way of the next parent that it asks, to the others.
func TestBootstrapStoppedAmidGoodbye(t *testing.T) {
	t.Parallel()
	for _, leaving := range []int{1, 2} { // of the four ranks the last, or position 0 as well
		t.Run(fmt.Sprint(leaving), func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			j.opts = func(int) string { return "peer-timeout=12s" }
			procs := j.startAll(t, 4)
			awaitAll(t, procs, "ready", patience)
			stopped, working := procs[3], procs[:3]
			stopped.order("bye 2m")
			if leaving == 2 {
				procs[0].order("bye 2m")
				working = procs[1:3]
			}
			for _, p := range working {
				p.order("hear 3")
				p.await(t, "heard 3", patience)
			}
			stop(t, stopped)
			awaitAll(t, procs[:3], "lost 3 no sign of life", 2*patience)
			resume(t, stopped)
			stopped.await(t, "parted", patience) // it has heard, and looks for nobody any more
			orderAll(working, "bye 1m")
			for _, p := range procs[:3] {
				if line := p.await(t, "parted", patience); line != "parted <nil>" || p.times("lost") != 1 {
					t.Errorf("rank %d: %s, %d losses, want 1", p.rank, line, p.times("lost"))
				}
			}
		})
	}
}
