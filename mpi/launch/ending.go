package launch

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// ending is how a job comes to its end: what is said of it, and how long its ranks may take once they have been asked.
type ending struct {
	*job
	out      Outcome
	left     int              // ranks that have not ended
	asked    bool             // they have been told to end
	pressed  bool             // somebody wants the job to end
	late     <-chan time.Time // when it fires, they are killed
	patience <-chan time.Time // when it fires, they are asked to end
	said     *notices
}

// wait sees the job to its end.
func (j *job) wait(ctx context.Context) Outcome {
	e := &ending{job: j, left: len(j.procs), said: newNotices(j.cfg.Notify)}
	done := ctx.Done()
	var timeout <-chan time.Time
	if j.cfg.Timeout > 0 {
		timer := time.NewTimer(j.cfg.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	for e.left > 0 {
		select {
		case x := <-j.ended:
			e.one(x)
		case <-timeout:
			e.timedOut()
		case s, ok := <-j.cfg.Interrupts:
			if ok {
				e.interrupted(s)
			} else {
				j.cfg.Interrupts = nil
			}
		case s, ok := <-j.cfg.Forward:
			if !ok {
				j.cfg.Forward = nil
				break
			}
			for _, p := range j.procs {
				_ = p.self.Signal(s) // os.ErrProcessDone: it has just ended
			}
		case <-done:
			done = nil
			e.press()
			e.ask(fmt.Sprintf("%v; ending %d ranks", context.Cause(ctx), e.left))
		case <-e.patience:
			e.ask(fmt.Sprintf("%d ranks have not ended by themselves within %v; ending them", e.left, j.cfg.Patience))
		case <-e.late:
			e.overdue()
		}
	}
	unlogged := e.sayWhatIsMissing()
	for _, err := range e.endRest() {
		e.said.add(err.Error())
	}
	e.hear(timeout, done)
	e.out.Exits = j.exits
	e.out.Code = e.out.code(e.asked, unlogged)
	return e.out
}

// press notes that somebody wants the job to end.
func (e *ending) press() {
	e.pressed = true
	if e.asked && e.late == nil { // only output is waited for
		e.late = time.After(e.cfg.Grace)
	}
}

// ask tells the ranks to end, once.
func (e *ending) ask(why string) {
	if e.asked {
		return
	}
	e.asked = true
	e.said.add(why)
	e.signal(syscall.SIGTERM)
	e.late = time.After(e.cfg.Grace)
}

// one notes the end of one rank.
func (e *ending) one(x Exit) {
	e.left--
	e.exits[x.Rank] = x
	if x.Code == 0 || e.out.First != nil || e.asked {
		return
	}
	e.out.First = &x
	switch why := fmt.Sprintf("rank %d on %s: %v", x.Rank, hostname(), x); {
	case e.cfg.Policy != EndAll || e.left == 0:
		e.said.add(why)
	case e.cfg.Patience > 0:
		e.said.add(why)
		e.patience = time.After(e.cfg.Patience)
	default:
		e.ask(fmt.Sprintf("%s; ending the other %d", why, e.left))
	}
}

func (e *ending) timedOut() {
	e.press()
	if e.asked { // the reason why it ends already says more than that it took long
		return
	}
	e.out.TimedOut = true
	e.ask(fmt.Sprintf("time limit of %v reached; ending %d ranks", e.cfg.Timeout, e.left))
}

func (e *ending) interrupted(s syscall.Signal) {
	e.press()
	switch {
	case e.out.Interrupted != 0:
		e.said.add(fmt.Sprintf("%v again: killing %d ranks", s, e.running()))
		e.kill()
	case e.asked:
		e.out.Interrupted = s
		e.said.add(fmt.Sprintf("%v: %d ranks are ending already (asked again, they are killed)", s, e.left))
	default:
		e.out.Interrupted = s
		e.ask(fmt.Sprintf("%v: ending %d ranks (asked again, they are killed)", s, e.left))
	}
}

// overdue kills the ranks that have been asked and are still there.
func (e *ending) overdue() {
	e.late = nil
	switch n := e.running(); {
	case n > 0:
		e.said.add(fmt.Sprintf("%d ranks did not end within %v: killing them", n, e.cfg.Grace))
		e.kill()
	case e.pressed:
		e.kill()
	} // else whoever takes the output may take as long as after any other end
}

// hear waits until all has been said, but not for long once ranks have been killed or somebody has pressed for the end, or does so now.
func (e *ending) hear(timeout <-chan time.Time, done <-chan struct{}) {
	for e.said.finish(); !e.pressed; {
		select {
		case <-e.said.told:
			return
		case <-e.killed:
			e.pressed = true
		case <-timeout:
			e.pressed = true
		case <-done:
			e.pressed = true
		case _, ok := <-e.cfg.Interrupts:
			if e.pressed = ok; !ok {
				e.cfg.Interrupts = nil
			}
		}
	}
	select {
	case <-e.said.told:
	case <-time.After(lateOutput):
	}
}

// sayWhatIsMissing tells of output that was not taken to its end and of incomplete logs, and reports whether there are such
// logs.
func (e *ending) sayWhatIsMissing() (unlogged bool) {
	var cut, logs []Exit
	for _, x := range e.exits {
		if x.cut {
			cut = append(cut, x)
		}
		if x.Log != nil {
			logs = append(logs, x)
		}
	}
	if len(cut) > 0 {
		e.said.add(fmt.Sprintf("the output of %d ranks has not been taken to its end", len(cut)))
	}
	if len(logs) > 0 {
		e.said.add(fmt.Sprintf("the logs of %d ranks are not complete; rank %d: %v", len(logs), logs[0].Rank, logs[0].Log))
	}
	return len(logs) > 0
}
