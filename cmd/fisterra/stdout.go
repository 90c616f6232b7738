package main

import (
	"errors"
	"io"
	"sync"
	"syscall"
)

// stdout is the standard output of a command. It remembers the first thing that could not be written, as on a disk
// that is full: what reads the output must not take the command's exit for success.
type stdout struct {
	w   io.Writer
	mu  sync.Mutex // of err
	err error
}

func (s *stdout) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.err = err
		}
	}
	return n, err
}

// failure is what went wrong.
func (s *stdout) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// rankOutput is where what ranks print goes. It tells when nobody reads it any more.
type rankOutput struct {
	w      io.Writer
	unread func()
}

func (o *rankOutput) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		o.unread()
	}
	return n, err
}
