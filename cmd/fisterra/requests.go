package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// requests tells apart the SIGTERM or Ctrl-C that first asks a process to end, the signals that belong to the same
// request, and those of somebody who has lost patience and asks again, by either.
type requests struct {
	// insistent are the signals that count when they come again. SIGTERM is not one in a job of Slurm's:
	// preemption, srun and the daemon of each node tell a task of the same end, seconds apart, and a task that does
	// not end within KillWait gets SIGKILL. SIGHUP never is: the terminal and the shell may both tell of one
	// hang-up.
	insistent []syscall.Signal
	first     time.Time
}

// requestsTo are the requests to a process with this environment, which says whether it is in a job of Slurm's.
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

// hearsSIGTERM is the annotation of commands that have ranks to end, or are a rank. The others have nothing to put
// in order, and SIGTERM ends them by itself: a command that computes, or writes to a pipe that nobody reads, would
// not look at a context.
const hearsSIGTERM = "fisterra_hears_sigterm"

func hearing(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{hearsSIGTERM: ""}
	return cmd
}

func hears(cmd *cobra.Command) bool {
	_, hears := cmd.Annotations[hearsSIGTERM]
	return hears
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

// toEnd are the signals that ask this process to end. SIGHUP and SIGINT are not among them where whoever started
// the process has had it ignore them, as nohup does with the first, and a shell without job control with the second
// for what it starts in the background.
func toEnd() []os.Signal {
	all := []os.Signal{syscall.SIGTERM, os.Interrupt, syscall.SIGHUP}
	return slices.DeleteFunc(all, func(s os.Signal) bool { return s != syscall.SIGTERM && signal.Ignored(s) })
}

// endOfRanks hears, until stop, the signals that ask the starter of ranks to end them, and then those that ask
// again; it sends both to asked. If ctx has ended, somebody had asked before. unread is a request, too, by SIGPIPE.
// SIGPIPE itself no longer ends the process, since its ranks would die with it and save nothing. It is heard, not
// ignored: ranks would inherit that, and must not be without the signal.
func endOfRanks(ctx context.Context, lookup func(string) (string, bool)) (asked <-chan syscall.Signal, unread, stop func()) {
	from, to := make(chan os.Signal, 4), make(chan syscall.Signal, 2)
	signal.Notify(from, toEnd()...)
	pipes := make(chan os.Signal, 1) // SIGPIPE of any file, such as the input of a rank that does not read it: nobody listens
	signal.Notify(pipes, syscall.SIGPIPE)
	if ctx.Err() != nil {
		from <- syscall.SIGTERM
	}
	over := make(chan struct{}) // from stays open: late output may come when the ranks have ended
	go func() {
		requests := requestsTo(lookup)
		for {
			var sig os.Signal
			select {
			case sig = <-from:
			case <-over:
				return
			}
			if number, ok := sig.(syscall.Signal); ok && requests.take(number, time.Now()) != asksSame {
				select {
				case to <- number:
				default: // a first and a second wait there
				}
			}
		}
	}()
	unread = sync.OnceFunc(func() {
		select {
		case from <- syscall.SIGPIPE:
		default: // there are requests enough
		}
	})
	return to, unread, func() {
		signal.Stop(pipes)
		signal.Stop(from)
		close(over)
	}
}
