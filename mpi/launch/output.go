package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// lines writes the output of several ranks to one writer without mixing their
// lines.
type lines struct {
	mu   sync.Mutex
	w    io.Writer
	text []byte      // what is written next
	over atomic.Bool // nothing more is written: the job has ended
}

// newOutputs returns the lines of the two outputs, which are one where both go to the same writer.
func newOutputs(stdout, stderr io.Writer) (out, errs *lines) {
	out = newLines(stdout)
	if stdout != nil && reflect.ValueOf(stdout).Comparable() && stdout == stderr {
		return out, out
	}
	return out, newLines(stderr)
}

func newLines(w io.Writer) *lines {
	if w == nil {
		w = io.Discard
	}
	return &lines{w: w}
}

// maxLine is how much of a line without an end is held back.
const maxLine = 64 << 10

// copy writes r's lines, each with the prefix, until r ends. The log gets them
// without it. A carriage return ends a line too: progress bars are shown as they move.
func (l *lines) copy(r io.Reader, prefix string, log *rankLog) {
	buf := make([]byte, 0, maxLine)
	whole := true // at the beginning of a line
	half := false // the last text ended with \r: a \n that comes next is of the same end of line
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		done := bytes.LastIndexAny(buf, "\n\r") + 1
		if err != nil || len(buf) == cap(buf) {
			done = len(buf)
		}
		text := buf[:done]
		if done > 0 {
			log.write(text)
		}
		if err != nil && !endsLine(text, whole) {
			text = append(text, '\n')
		}
		if len(text) > 0 {
			l.write(text, prefix, whole && !(half && text[0] == '\n'))
			whole = endsLine(text, whole)
			half = text[len(text)-1] == '\r'
		}
		if err != nil {
			return
		}
		buf = buf[:copy(buf, buf[done:])]
	}
}

// endsLine reports whether the next text begins a line. If this one is empty, that is as it was before: whole.
func endsLine(text []byte, whole bool) bool {
	if len(text) == 0 {
		return whole
	}
	last := text[len(text)-1]
	return last == '\n' || last == '\r'
}

// write writes text by one Write, since others may write to the same file, with the prefix at the beginning of each
// line; whole tells whether text begins one. A terminal that is gone is no error: the ranks' logs remain.
func (l *lines) write(text []byte, prefix string, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over.Load() {
		return
	}
	l.text = l.text[:0]
	for len(text) > 0 {
		if whole {
			l.text = append(l.text, prefix...)
		}
		n := lineEnd(text)
		l.text = append(l.text, text[:n]...)
		text, whole = text[n:], true
	}
	l.w.Write(l.text)
}

// lineEnd is where the first line of text ends. A \r\n, as in text from elsewhere, is one end of line.
func lineEnd(text []byte) int {
	i := bytes.IndexAny(text, "\n\r")
	switch {
	case i < 0:
		return len(text)
	case bytes.HasPrefix(text[i:], []byte("\r\n")):
		return i + 2
	}
	return i + 1
}

// output is the reading end of a rank's pipe. When its deadline has passed it goes on to the end of what is there at
// that moment: all that the rank has written, whenever somebody comes to take it, and no more of what a daemon writes.
type output struct {
	*os.File
	rest io.Reader // set when the deadline has passed
}

func (o *output) Read(b []byte) (int, error) {
	if o.rest == nil {
		n, err := o.File.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		there, err := o.waiting()
		if err == nil {
			err = o.SetReadDeadline(time.Time{}) // what is there does not block
		}
		if err != nil {
			return n, err
		}
		o.rest = io.LimitReader(o.File, int64(there))
	}
	return o.rest.Read(b)
}

// waiting is how many bytes the pipe holds. File.Fd would make the descriptor one without deadlines.
func (o *output) waiting() (n int, err error) {
	raw, err := o.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n, errors.Join(failed, err)
}

// rankLog is what the two outputs of a rank share as their Tee. Once it is closed it takes nothing.
type rankLog struct {
	mu     sync.Mutex
	w      io.WriteCloser // nil: there is none, or it is closed
	failed error          // the first failure
}

func (l *rankLog) write(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w == nil {
		return
	}
	if _, err := l.w.Write(b); err != nil && l.failed == nil {
		l.failed = err
	}
}

// Close returns what first failed. It leaves a log open that is stuck in a write: that is not waited for.
func (l *rankLog) Close() error {
	if !l.mu.TryLock() {
		return nil
	}
	defer l.mu.Unlock()
	if l.w == nil {
		return l.failed
	}
	if err := l.w.Close(); err != nil && l.failed == nil {
		l.failed = err
	}
	l.w = nil
	return l.failed
}
