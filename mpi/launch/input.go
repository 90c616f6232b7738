package launch

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// input is rank 0's standard input. A file is handed over as it is, so that what the rank does not read is left in it. Two
// kinds are copied to a pipe instead: a reader that is no file; and the terminal that controls the session, which would stop
// rank 0 for reading it, since rank 0 is in a process group of its own. Nobody waits for the copying: the input may never
// end.
type input struct {
	file *os.File      // what rank 0 gets; nil: nothing
	feed *os.File      // the pipe's other end; nil: nothing is copied
	over chan struct{} // closed by Close
	once sync.Once
}

// openInput begins to copy where there is something to copy.
func openInput(from io.Reader) (*input, error) {
	in := &input{over: make(chan struct{})}
	file, isFile := from.(*os.File)
	switch {
	case from == nil:
		return in, nil
	case isFile && !controls(file):
		in.file = file
		return in, nil
	case isFile:
		from = &terminal{file, in.over}
	}
	var err error
	if in.file, in.feed, err = os.Pipe(); err != nil {
		return nil, err
	}
	go func() {
		_, _ = io.Copy(in.feed, from) // an end is an end, whatever the reason
		in.feed.Close()
	}()
	return in, nil
}

// handedOver closes this process's copy of rank 0's end of the pipe, once rank 0 has it or could not be started.
func (in *input) handedOver() {
	if in.feed != nil {
		in.file.Close()
	}
}

// Close ends the copying, when rank 0 has ended.
func (in *input) Close() error {
	in.once.Do(func() {
		close(in.over)
		if in.feed != nil {
			in.feed.Close()
		}
	})
	return nil
}

// controls reports whether f is the terminal that controls this process's session.
func controls(f *os.File) bool {
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil
}

// terminal reads the session's terminal, and only while this process's group is in the foreground: otherwise reading would
// stop this process, too.
type terminal struct {
	f    *os.File
	over <-chan struct{}
}

// terminalLook is how long it takes to notice that the job has come to the front, or is over.
const terminalLook = 200 * time.Millisecond

func (t *terminal) Read(b []byte) (int, error) {
	for {
		select {
		case <-t.over:
			return 0, io.EOF
		default:
		}
		if !t.inFront() {
			time.Sleep(terminalLook)
			continue
		}
		ready := []unix.PollFd{{Fd: int32(t.f.Fd()), Events: unix.POLLIN}}
		n, _ := unix.Poll(ready, int(terminalLook/time.Millisecond)) // EINTR: nothing is ready
		if n > 0 && t.inFront() {
			return t.f.Read(b)
		}
	}
}

// inFront is also true where the terminal is gone, which reading it will tell.
func (t *terminal) inFront() bool {
	group, err := unix.IoctlGetInt(int(t.f.Fd()), unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}
