package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/ps/train"
)

// signals are what Slurm sends to a task: SIGTERM before the end, and what
// --signal asks for.
type signals struct {
	save      chan struct{}
	interrupt chan struct{}
	from      chan os.Signal
	first     atomic.Int32 // the signal that ended the run
	log       atomic.Pointer[slog.Logger]
}

func watchSignals() *signals {
	s := &signals{save: make(chan struct{}, 1), interrupt: make(chan struct{}), from: make(chan os.Signal, 4)}
	signal.Notify(s.from, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, os.Interrupt)
	go func() {
		for sig := range s.from {
			number, ok := sig.(syscall.Signal)
			switch {
			case sig == syscall.SIGUSR2:
				select {
				case s.save <- struct{}{}:
				default: // asked for already
				}
			case ok && s.first.CompareAndSwap(0, int32(number)):
				if log := s.log.Load(); log != nil {
					log.Log(context.Background(), train.Notice, "the run ends after this step, as asked", "signal", sig.String())
				}
				close(s.interrupt)
			}
		}
	}()
	return s
}

// report has what comes from now on written to a log.
func (s *signals) report(log *slog.Logger) { s.log.Store(log) }

// signalSpread is how much later than to another rank a signal of Slurm's may
// come to this one.
const signalSpread = 2 * time.Second

// why is the signal that ended the run. Slurm sends it to every rank, but the run may
// be over before this one has it: srun's exit code is the ranks' highest, so all must name
// the same. SIGTERM stands for one that only another rank got.
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
