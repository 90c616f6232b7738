// Package clib opens C libraries at run time and calls them without a C compiler,
// with CGO_ENABLED=0 and 1 alike.
//
// A call goes through runtime.cgocall and a trampoline of our own: about 45 ns for
// seven arguments and no allocation, against more than 500 ns and eight allocations
// through a reflected function. purego supplies what that needs under CGO_ENABLED=0,
// the C runtime's start-up and dlopen.
//
// Two rules keep it sound. C is never given a Go function to call back, so a [Block]
// may live on the goroutine's stack, which does not move during a call. And memory
// whose address is handed over as a uintptr must be on the heap and referenced until C
// is done with it: the conversion hides it from escape analysis.
//
// The build tag purego_off, and any platform but Linux on amd64 and arm64, leave all
// of it out; [Open] then returns [ErrBuiltWithout] and the binary is fully static.
package clib

import (
	"errors"
	"fmt"
	"unsafe"
)

// MaxArgs is the number of integer or pointer arguments a call can carry.
const MaxArgs = 12

var (
	// ErrBuiltWithout says that this binary cannot open C libraries at all.
	ErrBuiltWithout = errors.New("built without support for C libraries")
	// ErrNotLoaded says that the dynamic loader refused a library.
	ErrNotLoaded = errors.New("library not loaded")
)

// Block is one C call: the function's address, its arguments and its result. Integers
// narrower than a word are sign-extended by the caller, as in uintptr(int(x)). The
// result is the whole return register: int results are read as int32(b.R).
//
// The assembly knows this layout.
type Block struct {
	Fn uintptr
	A  [MaxArgs]uintptr
	R  uintptr
}

// Chain is a call that starts an operation and the calls that ask whether it is done,
// made in one go: a switch to C costs more than many a C function that it calls.
//
// Start is made first, unless its Fn is 0. If its result, as a C int, is 0, Poll is
// made up to Tries times, until its result is another than 0 or the int at Flag is.
// Tries counts down. The assembly knows this layout.
type Chain struct {
	Start, Poll Block
	Flag        uintptr
	Tries       uintptr
}

// String copies the NUL-terminated string at address p, reading at most limitBytes of
// it. A nil p is the empty string.
func String(p uintptr, limitBytes int) string {
	if p == 0 {
		return ""
	}
	base := (*byte)(Pointer(p))
	n := 0
	for n < limitBytes && *(*byte)(unsafe.Add(unsafe.Pointer(base), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(base, n))
}

// Text copies the bytes of b up to its first NUL.
func Text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Bytes returns s followed by a NUL, on the heap, for an argument of type const char *.
// Inlined, it could end up on the caller's stack.
//
//go:noinline
func Bytes(s string) []byte { return append([]byte(s), 0) }

// Pointer turns an address that C returned into a pointer. It must not be an address
// of Go memory.
func Pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func notLoaded(name string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrNotLoaded, name, err)
}
