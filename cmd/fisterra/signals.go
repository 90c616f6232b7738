package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/ps/train"
)

// signals are those that Slurm sends to a task: SIGTERM before the end, and the one that --signal asks for. A
// terminal sends SIGHUP. An insistent signal that comes a second time ends the process without waiting for the end
// of the step, which may itself be waiting for data, a server or a library.
type signals struct {
	save      chan struct{}
	interrupt chan struct{}
	from      chan os.Signal
	first     atomic.Int32 // the signal that ended the run
	log       atomic.Pointer[slog.Logger]
}

// watchSignals hears signals until stop. The environment tells which are insistent. If ctx has ended, SIGTERM came
// before.
func watchSignals(ctx context.Context, lookup func(string) (string, bool)) *signals {
	s := hearSignals(lookup)
	signal.Notify(s.from, append(toEnd(), syscall.SIGUSR1, syscall.SIGUSR2)...)
	if ctx.Err() != nil {
		s.from <- syscall.SIGTERM
	}
	return s
}

// hearSignals acts on what comes from s.from until that is closed.
func hearSignals(lookup func(string) (string, bool)) *signals {
	s := &signals{save: make(chan struct{}, 1), interrupt: make(chan struct{}), from: make(chan os.Signal, 4)}
	go func() {
		requests := requestsTo(lookup)
		for sig := range s.from {
			if sig == syscall.SIGUSR2 {
				select {
				case s.save <- struct{}{}:
				default: // asked for already
				}
				continue
			}
			number, ok := sig.(syscall.Signal)
			if ok && s.first.CompareAndSwap(0, int32(number)) {
				s.notice("the run ends after this step, as asked; a second "+signalNames(requests.insistent)+" ends it at once", sig)
				close(s.interrupt)
			}
			if ok && number != syscall.SIGUSR1 && requests.take(number, time.Now()) == asksAgain {
				s.notice("the run ends at once and saves nothing, as asked again", sig)
				endBy(number)
			}
		}
	}()
	return s
}

func (s *signals) notice(text string, sig os.Signal) {
	if log := s.log.Load(); log != nil {
		log.Log(context.Background(), train.Notice, text, "signal", sig.String())
	}
}

// signalNames are signals as users know them.
func signalNames(all []syscall.Signal) string {
	names := map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "Ctrl-C"}
	var text []string
	for _, s := range all {
		text = append(text, names[s])
	}
	return strings.Join(text, " or ")
}

// endBy ends this process as the signal does where nobody handles it, so that whoever waits for the process sees
// which signal it was.
func endBy(number syscall.Signal) {
	signal.Reset(number)
	_ = syscall.Kill(os.Getpid(), number) // it may always signal itself
}

// report has the signals that come from now on written to a log.
func (s *signals) report(log *slog.Logger) { s.log.Store(log) }

// signalSpread is how much later a signal of Slurm's may come to this rank than to another.
const signalSpread = 5 * time.Second

// why is the signal that ended the run. Slurm sends it to every rank, but the run may be over before this rank has
// got it. So why waits for it: srun's exit code is the ranks' highest, and all must name the same signal. SIGTERM
// stands for a signal that only another rank got.
func (s *signals) why() int {
	select {
	case <-s.interrupt:
		return int(s.first.Load())
	case <-time.After(signalSpread):
		return int(syscall.SIGTERM)
	}
}

func (s *signals) stop() {
	signal.Stop(s.from)
	close(s.from)
}
