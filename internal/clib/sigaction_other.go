//go:build !linux

package clib

import "syscall"

// SignalActions is what the process does on each signal; here nothing is recorded,
// since no library is ever loaded.
type SignalActions struct{}

// Signals returns an empty record.
func Signals() *SignalActions { return &SignalActions{} }

// Restore does nothing.
func (*SignalActions) Restore() ([]syscall.Signal, error) { return nil, nil }
