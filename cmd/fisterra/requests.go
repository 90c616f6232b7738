package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// requests tells the SIGTERM or Ctrl-C that asks a process to end from the ones that belong to it, and from those of
// somebody who asks again, by either, and has lost patience.
type requests struct {
	// insistent are the signals that count again. SIGTERM is not one in a job of Slurm's: preemption, srun
	// and the daemon of each node tell a task of the same end, seconds apart, and what does not end in
	// KillWait gets SIGKILL.
	insistent []syscall.Signal
	first     time.Time
}

// requestsTo are those to a process with this environment, which says whether it is in a job of Slurm's.
func requestsTo(lookup func(string) (string, bool)) requests {
	if _, in := lookup("SLURM_JOB_ID"); in {
		return requests{insistent: []syscall.Signal{syscall.SIGINT}}
	}
	return requests{insistent: []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}}
}

// sameRequest is how long signals count as one request: timeout(1) sends its signal to the
// process and to its group, and terminals and launchers may both tell a rank of one Ctrl-C.
const sameRequest = 500 * time.Millisecond

// request is what a signal asks for.
type request int

const (
	asksFirst request = iota // to end
	asksSame                 // nothing that has not been asked
	asksAgain                // to end at once
)

func (r *requests) take(number syscall.Signal, now time.Time) request {
	switch {
	case r.first.IsZero():
		r.first = now
		return asksFirst
	case now.Sub(r.first) >= sameRequest && slices.Contains(r.insistent, number):
		return asksAgain
	}
	return asksSame
}

// untilAsked is a context that SIGTERM ends. Where nothing else handles the signals, Ctrl-C ends the process by
// itself, and so does a SIGTERM that asks again.
func untilAsked(lookup func(string) (string, bool)) (ctx context.Context, stop func()) {
	ctx, stop = signal.NotifyContext(context.Background(), syscall.SIGTERM)
	if requests := requestsTo(lookup); slices.Contains(requests.insistent, syscall.SIGTERM) {
		context.AfterFunc(ctx, func() { time.AfterFunc(sameRequest, stop) })
	}
	return ctx, stop
}

// endOfRanks hears until stop what asks the starter of ranks to end them, and then what asks again. ctx has ended
// if somebody had asked before.
func endOfRanks(ctx context.Context, lookup func(string) (string, bool)) (asked <-chan syscall.Signal, stop func()) {
	from, to := make(chan os.Signal, 4), make(chan syscall.Signal, 2)
	signal.Notify(from, syscall.SIGTERM, os.Interrupt)
	if ctx.Err() != nil {
		from <- syscall.SIGTERM
	}
	go func() {
		requests := requestsTo(lookup)
		for sig := range from {
			if number, ok := sig.(syscall.Signal); ok && requests.take(number, time.Now()) != asksSame {
				select {
				case to <- number:
				default: // a first and a second wait there
				}
			}
		}
	}()
	return to, func() {
		signal.Stop(from)
		close(from)
	}
}
