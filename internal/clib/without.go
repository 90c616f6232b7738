//go:build !linux || !(amd64 || arm64) || purego_off

package clib

// Available reports whether this binary can open C libraries.
const Available = false

// Library is a C library in this process; here there are none.
type Library struct{}

// Open returns [ErrBuiltWithout].
func Open(name string) (*Library, error) { return nil, notLoaded(name, ErrBuiltWithout) }

// Sym returns 0.
func (l *Library) Sym(string) uintptr { return 0 }

// Global returns 0.
func Global(string) uintptr { return 0 }

// Path returns the empty string.
func (l *Library) Path() string { return "" }

// Call panics: without libraries there is no function to call.
func (b *Block) Call() uintptr { panic(ErrBuiltWithout) }

// Call panics: without libraries there is no function to call.
func (c *Chain) Call() { panic(ErrBuiltWithout) }

// CallBrief panics: without libraries there is no function to call.
func (c *Chain) CallBrief() { panic(ErrBuiltWithout) }

// Call panics: without libraries there is no function to call.
func Call(uintptr, ...uintptr) uintptr { panic(ErrBuiltWithout) }
