// Package testlog keeps what is logged, for tests that wait for a line of it. Nothing but
// tests imports it.
package testlog

import (
	"bytes"
	"context"
	"fmt"
	"sync"
)

// Buffer is an io.Writer for any number of goroutines. The zero Buffer is empty.
type Buffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	grown chan struct{} // closed by the next Write; nil: nobody waits
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.grown != nil {
		close(b.grown)
		b.grown = nil
	}
	return b.b.Write(p)
}

// String is everything written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Await blocks until everything written so far is as wanted, or ctx ends: the error shows
// what was written.
func (b *Buffer) Await(ctx context.Context, wanted func(text string) bool) error {
	for {
		b.mu.Lock()
		text := b.b.String()
		if b.grown == nil {
			b.grown = make(chan struct{})
		}
		grown := b.grown
		b.mu.Unlock()
		if wanted(text) {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return fmt.Errorf("%w; logged so far: %q", context.Cause(ctx), text)
		}
	}
}
