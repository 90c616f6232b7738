package bench

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// memory is where vectors lie.
type memory interface {
	get(c *mpi.Comm, n int) ([]float32, error)
	free(c *mpi.Comm, v []float32) error
}

// shared is memory that ranks of a host can map, as programs have it for which the speed of collectives matters.
type shared struct{}

func (shared) get(c *mpi.Comm, n int) ([]float32, error) { return mpi.Alloc[float32](c, n) }
func (shared) free(c *mpi.Comm, v []float32) error       { return mpi.Free(c, v) }

// heap is memory of the rank's own, as most programs have it.
type heap struct{}

func (heap) get(_ *mpi.Comm, n int) ([]float32, error) {
	if err := affords(n * elementBytes); err != nil {
		return nil, err
	}
	return make([]float32, n), nil
}
func (heap) free(*mpi.Comm, []float32) error { return nil }

// lent is memory of a communicator that measurements have one after the other. Each gets the shortest piece that is long
// enough: memory that has been touched once costs the next one nothing.
type lent struct {
	of   memory
	c    *mpi.Comm
	idle [][]float32
}

func (l *lent) get(_ *mpi.Comm, n int) ([]float32, error) {
	best := -1
	for i, v := range l.idle {
		if cap(v) >= n && (best < 0 || cap(v) < cap(l.idle[best])) {
			best = i
		}
	}
	if best < 0 {
		return l.of.get(l.c, n)
	}
	v := l.idle[best]
	l.idle = slices.Delete(l.idle, best, best+1)
	return v[:n], nil
}

func (l *lent) free(_ *mpi.Comm, v []float32) error {
	if cap(v) > 0 {
		l.idle = append(l.idle, v[:cap(v)])
	}
	return nil
}

// end gives all of it back.
func (l *lent) end() error {
	for _, v := range l.idle {
		if err := l.of.free(l.c, v); err != nil {
			return err
		}
	}
	l.idle = nil
	return nil
}

// affords asks the kernel for memory of such lengths in bytes, all at once, and gives it back: where it refuses, Go's
// runtime would end the process. Lengths that any machine has are not asked for.
func affords(lengths ...int) error {
	for _, n := range lengths {
		if n < 1<<30 {
			continue
		}
		m, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil {
			return fmt.Errorf("bench: %d bytes, for which this machine has no memory: %w", n, err)
		}
		defer func() { _ = syscall.Munmap(m) }() // it is mapped
	}
	return nil
}
