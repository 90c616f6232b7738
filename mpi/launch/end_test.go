package launch

// How a job ends: by itself, by a failure, a signal, its time, or when it is asked to; and with which code.

import (
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestFirstFailureEndsTheRest(t *testing.T) {
	var said []string
	o, _ := run(t, Config{Ranks: 3, Grace: time.Minute, Notify: func(s string) { said = append(said, s) }},
		`if [ $FISTERRA_RANK = 1 ]; then exit 7; fi; sleep 100`)
	if o.First == nil || o.First.Rank != 1 || o.First.Code != 7 {
		t.Errorf("first failure %+v", o.First)
	}
	if o.Code != 7 || o.Exits[0].Signal != syscall.SIGTERM || !o.Exits[0].Ended {
		t.Errorf("%+v: want code 7, and rank 0 ended by SIGTERM", o)
	}
	if len(said) == 0 || !strings.Contains(said[0], "rank 1 on ") || !strings.Contains(said[0], "exit code 7") {
		t.Errorf("said %q", said)
	}
}

// A rank that has failed by itself counts although the launcher hears of it only
// after it has begun to end the others, here because nobody takes its output before.
func TestHighestCodeOfThoseThatEndedByThemselves(t *testing.T) {
	noticed := make(chan struct{})
	notice := sync.OnceFunc(func() { close(noticed) })
	o, err := Run(t.Context(), Config{
		Ranks: 3, Grace: time.Minute, Stdout: heldUp(noticed), Notify: func(string) { notice() },
		Program: "sh", Args: []string{"-c", `cd ` + t.TempDir() + `; case $FISTERRA_RANK in
		0) echo failing; echo $$ >new; mv new pid; exit 9;;
		1) until [ -e pid ]; do sleep 0.01; done; while kill -0 $(cat pid); do sleep 0.01; done; exit 7;;
		esac; sleep 100`},
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.Code != 9 || o.Exits[0].Ended || o.Exits[1].Ended || !o.Exits[2].Ended || o.First == nil || o.First.Code != 7 {
		t.Errorf("%+v: want the code 9 of rank 0, which the launcher did not end", o)
	}
}

// A daemon that has left its session and its rank, with the outputs, keeps the job neither by silence nor by talking, and
// is not left behind.
func TestNothingIsLeftBehind(t *testing.T) {
	for _, does := range []string{"exec sleep 1000", "while :; do echo still here; sleep 0.01; done"} {
		_, out := run(t, Config{Ranks: 1}, `cd `+t.TempDir()+`; setsid sh -c 'echo $$; : >apart; `+does+`' & until [ -e apart ]; do sleep 0.01; done`)
		pid, _, _ := strings.Cut(out, "\n")
		expectGone(t, pid)
	}
}

func TestSignalIsNamed(t *testing.T) {
	o, _ := run(t, Config{Ranks: 2}, `if [ $FISTERRA_RANK = 0 ]; then kill -KILL $$; fi; sleep 100`)
	if o.First == nil || o.First.String() != "killed by signal 9 (SIGKILL)" || o.Code < 137 {
		t.Errorf("%+v", o)
	}
}

func TestContinueLeavesTheOthers(t *testing.T) {
	o, out := run(t, Config{Ranks: 2, Policy: Continue}, `if [ $FISTERRA_RANK = 0 ]; then exit 3; fi; sleep 0.3; echo still here`)
	if !strings.Contains(out, "still here") || o.Exits[1].Code != 0 || o.First.Rank != 0 {
		t.Errorf("%+v %q", o, out)
	}
}

func TestTimeout(t *testing.T) {
	o, _ := run(t, Config{Ranks: 2, Timeout: 200 * time.Millisecond}, `sleep 100`)
	if !o.TimedOut || o.Code != ExitTimeout {
		t.Errorf("%+v", o)
	}
}

// A job that ends for another reason does so by that, also when its time is up meanwhile.
func TestTimeoutWhileRanksEnd(t *testing.T) {
	dir := t.TempDir()
	var said []string
	o, _ := run(t, Config{Ranks: 2, Timeout: time.Second, Grace: time.Minute, Notify: func(s string) { said = append(said, s) }},
		`cd `+dir+`; if [ $FISTERRA_RANK = 0 ]; then until [ -e ready ]; do sleep 0.01; done; exit 3; fi
		trap 'sleep 1.5; exit 0' TERM; echo >ready; while :; do sleep 0.05; done`)
	if len(said) > 0 && strings.Contains(said[0], "time limit") {
		t.Skip("rank 0 did not fail within the time limit")
	}
	if o.TimedOut || o.Code != 3 || len(said) != 1 {
		t.Errorf("%+v %q: want the code 3 of rank 0", o, said)
	}
}

func TestStubbornRankIsKilled(t *testing.T) {
	stop := make(chan syscall.Signal, 1)
	o, err := Run(t.Context(), Config{
		Ranks: 1, Interrupts: stop, Grace: 200 * time.Millisecond,
		Program: "sh", Args: []string{"-c", `trap "" TERM; echo ready; while :; do sleep 0.05; done`},
		Stdout: &signaller[syscall.Signal]{to: stop, after: 1, signals: []syscall.Signal{syscall.SIGINT}},
	})
	if err != nil || o.Exits[0].Signal != syscall.SIGKILL {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestSecondInterruptKills(t *testing.T) {
	for _, asked := range [][]syscall.Signal{{syscall.SIGINT, syscall.SIGINT}, {syscall.SIGINT, syscall.SIGTERM}, {syscall.SIGTERM, syscall.SIGINT}, {syscall.SIGTERM, syscall.SIGTERM}} {
		stop := make(chan syscall.Signal, 2)
		o, err := Run(t.Context(), Config{
			Ranks: 2, Interrupts: stop, Grace: time.Minute,
			Program: "sh", Args: []string{"-c", `trap "" TERM; echo ready; while :; do sleep 0.05; done`},
			Stdout: &signaller[syscall.Signal]{to: stop, after: 2, signals: asked},
		})
		if err != nil || o.Interrupted != asked[0] || o.Code != 128+int(asked[0]) || o.Exits[0].Signal != syscall.SIGKILL {
			t.Errorf("%v: %+v, %v", asked, o, err)
		}
	}
}

// Ranks that end because another failed keep the time they have for it when somebody asks for what is being done.
func TestFirstInterruptIsGracefulWhileRanksEnd(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan syscall.Signal, 1)
	o, out := run(t, Config{Ranks: 2, Interrupts: stop, Grace: time.Minute, Notify: func(text string) {
		if strings.Contains(text, "ending the other") {
			stop <- syscall.SIGTERM
		}
	}}, `cd `+dir+`; if [ $FISTERRA_RANK = 0 ]; then until [ -e ready ]; do sleep 0.01; done; exit 3; fi
		trap 'sleep 0.3; echo saved; exit 0' TERM; echo >ready; while :; do sleep 0.05; done`)
	if !strings.Contains(out, "saved") || o.Exits[1].Signal != 0 || o.Code != 3 {
		t.Errorf("%+v %q", o, out)
	}
}

// A rank that acts on a signal gets it, and what it has started, and would die of it, does not.
func TestForwardedSignalsReachTheRanksAlone(t *testing.T) {
	forward := make(chan os.Signal, 1)
	o, err := Run(t.Context(), Config{
		Ranks: 2, Forward: forward, Policy: Continue,
		Program: "sh", Args: []string{"-c", `sleep 100 & child=$!; trap 'kill -TERM $child; wait $child; exit $?' USR1; echo ready; wait`},
		Stdout: &signaller[os.Signal]{to: forward, after: 2, signals: []os.Signal{syscall.SIGUSR1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range o.Exits {
		if x.Code != 128+int(syscall.SIGTERM) || x.Signal != 0 || x.Ended {
			t.Errorf("%+v: want the exit code by which its child ended, of SIGTERM", x)
		}
	}
}

// signaller sends signals once so many ranks have said something.
type signaller[S os.Signal] struct {
	to      chan S
	after   int
	signals []S
}

func (s *signaller[S]) Write(b []byte) (int, error) {
	if s.after--; s.after == 0 {
		for _, x := range s.signals {
			s.to <- x
		}
	}
	return len(b), nil
}
