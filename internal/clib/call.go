//go:build linux && (amd64 || arm64) && !purego_off

package clib

import "unsafe"

// runtime.cgocall is marked for linkname use by purego, whose start-up code we import.
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(fn uintptr, arg unsafe.Pointer) int32

// runtime.asmcgocall switches to the system stack and calls; cgocall does that and tells
// the scheduler. The runtime itself uses it bare for short C functions where the system
// has no calls but libc's.
//
//go:linkname asmcgocall runtime.asmcgocall
//go:noescape
func asmcgocall(fn, arg unsafe.Pointer) int32

// Addresses of the assembly that spreads a Block into registers, or runs a Chain.
var blockTrampolineAddr, chainTrampolineAddr uintptr

// Call calls b.Fn and returns b.R. The goroutine counts as being in a system call
// meanwhile: a call longer than about 20 µs costs it its P, so hot paths make short
// calls and poll.
func (b *Block) Call() uintptr {
	cgocall(blockTrampolineAddr, unsafe.Pointer(b))
	return b.R
}

// Call makes the chain's calls. See [Block.Call] about long ones.
func (c *Chain) Call() { cgocall(chainTrampolineAddr, unsafe.Pointer(c)) }

// CallBrief is Call for functions that return within a few microseconds: 15 ns less, and
// no reason for the scheduler to take the goroutine's P away. But nobody else gets that P
// either, and a collection that wants to begin waits for the call to return.
func (c *Chain) CallBrief() { asmcgocall(Pointer(chainTrampolineAddr), unsafe.Pointer(c)) }

// Call calls fn with args and returns the whole result register. An argument written
// as uintptr(unsafe.Pointer(p)) in the call itself is moved to the heap and kept alive
// until the call returns; that makes it safe, and costs an allocation, so hot paths use
// a [Block].
//
//go:uintptrescapes
func Call(fn uintptr, args ...uintptr) uintptr {
	b := Block{Fn: fn}
	if len(args) > MaxArgs {
		panic("clib: more than 12 arguments")
	}
	copy(b.A[:], args)
	return b.Call()
}
