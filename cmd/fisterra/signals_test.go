package main

import (
	"syscall"
	"testing"
	"time"
)

// A rank whose signal comes after the run has ended by another's names the same.
func TestLateSignalNamesTheEnd(t *testing.T) {
	s := watchSignals()
	defer s.stop()
	got := make(chan int, 1)
	go func() { got <- s.why() }()
	select {
	case n := <-got:
		t.Fatalf("signal %d before there was one", n)
	case <-time.After(50 * time.Millisecond): // nothing is to happen
	}
	s.from <- syscall.SIGUSR1
	if n := <-got; n != int(syscall.SIGUSR1) {
		t.Errorf("signal %d, want USR1", n)
	}
	s.from <- syscall.SIGTERM // a later one changes nothing
	if n := s.why(); n != int(syscall.SIGUSR1) {
		t.Errorf("signal %d, want USR1, the first", n)
	}
}
