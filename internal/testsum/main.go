// Command testsum runs `go test` and prints what it says in its own plain lines, the
// output of failing tests, and at the end every test that was skipped with its reason,
// so that a run that passed by skipping cannot be taken for one that tested, and
// every one that failed with the gist of its output.
//
//	go run ./internal/testsum [go test flags] -- PACKAGES
//
// It exits with the code of go test; with 2 where no packages are given; and with 1 where go test succeeds, but no test was
// run (none fits -run, say) or a package has no verdict.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// quiet is how long a run may say nothing before it names the tests that are running.
const quiet = 30 * time.Second

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	// Only the caller knows a package's import path from the value of a flag.
	at := slices.Index(args, "--")
	if at < 0 || at == len(args)-1 {
		fmt.Fprintln(stderr, "testsum: no packages given after --: nothing to test")
		return 2
	}
	cmd := exec.Command("go", slices.Concat([]string{"test", "-json"}, args[:at], args[at+1:])...)
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		fmt.Fprintln(stderr, "testsum:", err)
		return 1
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(stderr, "testsum:", err)
		return 1
	}
	// An interrupt reaches go test as well (same process group); wait for its last words.
	signal.Ignore(os.Interrupt)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)

	lines := make(chan []byte)
	go readLines(pipe, lines)
	sum := newSummary(stdout)
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for open := true; open; {
		select {
		case line, ok := <-lines:
			if open = ok; ok && sum.line(line) {
				tick.Reset(quiet)
			}
		case <-tick.C:
			sum.heartbeat(time.Now())
		case <-term:
			_ = cmd.Process.Signal(os.Interrupt) // go test passes it on to the test binary
		}
	}
	err = cmd.Wait()
	passed := sum.close(err)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1) // -1 when a signal ended it
	}
	if !passed {
		return 1
	}
	return 0
}

func readLines(r io.Reader, lines chan<- []byte) {
	defer close(lines)
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			lines <- line
		}
		if err != nil {
			return
		}
	}
}
