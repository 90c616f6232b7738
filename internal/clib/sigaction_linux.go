package clib

import (
	"fmt"
	"syscall"
	"unsafe"
)

// sigaction is the kernel's own layout, not libc's; it is the same on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// signals is the number of signals the kernel knows, numbered from 1.
const signals = 64

// SignalActions is what the process does on each signal.
//
// Libraries take signals over when they are loaded or initialised: UCX the fatal ones
// and SIGHUP, MPICH SIGUSR1 without an alternate stack. A nil dereference then kills
// the job instead of panicking, and Slurm's --signal can be a fatal runtime error. So
// take the actions before loading and put them back afterwards.
type SignalActions struct {
	actions [signals]sigaction
	known   [signals]bool
}

// reserved reports whether glibc keeps a signal for itself: 32 cancels a thread, 33
// makes setuid reach all threads. It installs them when it first needs them.
func reserved(signal int) bool { return signal == 32 || signal == 33 }

// Signals returns the actions of all signals as they are now.
func Signals() *SignalActions {
	s := new(SignalActions)
	for i := range s.actions {
		s.known[i] = !reserved(i+1) && rtSigaction(i+1, nil, &s.actions[i]) == 0
	}
	return s
}

// Restore makes every signal's action what it was when s was taken, and returns the
// signals that had been changed, in rising order. The two that glibc keeps for itself
// are left alone.
func (s *SignalActions) Restore() ([]syscall.Signal, error) {
	var changed []syscall.Signal
	now := Signals()
	for i := range s.actions {
		if !s.known[i] || !now.known[i] || s.actions[i] == now.actions[i] {
			continue
		}
		if errno := rtSigaction(i+1, &s.actions[i], nil); errno != 0 {
			return changed, fmt.Errorf("clib: restoring the action of signal %d: %w", i+1, errno)
		}
		changed = append(changed, syscall.Signal(i+1))
	}
	return changed, nil
}

func rtSigaction(signal int, set, get *sigaction) syscall.Errno {
	const maskBytes = 8
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(signal),
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), maskBytes, 0, 0)
	return errno
}
