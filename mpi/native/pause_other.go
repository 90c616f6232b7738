//go:build !linux

package native

import "time"

// Without Linux no library is ever loaded; these keep the package compiling.
func yield() {}

func pause(int) { time.Sleep(time.Millisecond) }

func nap(d time.Duration) { time.Sleep(d) }
