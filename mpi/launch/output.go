package launch

import (
	"bufio"
	"io"
	"sync"
)

// lines writes the output of several ranks to one writer without mixing their
// lines.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func newLines(w io.Writer) *lines {
	if w == nil {
		w = io.Discard
	}
	return &lines{w: w}
}

// maxLine is how much of a line without an end is held back.
const maxLine = 64 << 10

// copy writes r's lines, each with the prefix, until r ends. tee gets them
// without it.
func (l *lines) copy(r io.Reader, prefix string, tee io.Writer) {
	b := bufio.NewReaderSize(r, maxLine)
	whole := true // at the beginning of a line
	for {
		line, err := b.ReadSlice('\n')
		if len(line) > 0 {
			l.mu.Lock()
			if whole && prefix != "" {
				io.WriteString(l.w, prefix)
			}
			l.w.Write(line) // the terminal is gone: the ranks' own logs remain
			whole = line[len(line)-1] == '\n'
			if !whole && err == io.EOF {
				io.WriteString(l.w, "\n")
			}
			l.mu.Unlock()
			tee.Write(line)
		}
		if err != nil && err != bufio.ErrBufferFull {
			return
		}
	}
}

// teeWriter lets the two outputs of a rank share its log.
type teeWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (t *teeWriter) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.w == nil {
		return len(b), nil
	}
	return t.w.Write(b)
}
