package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// The one-sided operations, as OSU's put_latency and get_latency with flush:
// rank 0 writes to, or reads from, the memory of rank 1, which takes no part.
// The memory is from mpi.Alloc on both sides.

// oneSided measures put or get. All ranks call it.
func oneSided(ctx context.Context, c *mpi.Comm, op string, o Options, row func(Row)) error {
	if err := exactlyTwo(op, c.Size()); err != nil {
		return err
	}
	most := 1
	for _, n := range o.Sizes {
		most = max(most, n)
	}
	shared, err := mpi.Alloc[byte](c, most)
	if err != nil {
		return err
	}
	local, err := mpi.Alloc[byte](c, most)
	if err != nil {
		return err
	}
	w, err := mpi.NewWindow(ctx, c, shared)
	if err != nil {
		return err
	}
	t := timer{c: c, kind: Latency, o: o}
	for _, n := range o.Sizes {
		s := &side{c: c, w: w, shared: shared[:n], local: local[:n], op: op}
		l := o.rootLaps(c)
		samples, calls, err := t.checked(ctx, n, s.verify, s.batch, l)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			r := rowOf(op, n, c.Size(), [][]float64{samples}, calls)
			r.Tail = l.tail(func(us float64) float64 { return us })
			row(r)
		}
	}
	if err := w.Free(ctx); err != nil {
		return err
	}
	if err := mpi.Free(c, local); err != nil {
		return err
	}
	return mpi.Free(c, shared)
}

type side struct {
	c             *mpi.Comm
	w             *mpi.Window[byte]
	shared, local []byte
	op            string
}

func (s *side) batch(ctx context.Context, count int, l *laps) (float64, error) {
	start := time.Now()
	l.begin()
	if s.c.Rank() == 0 {
		for range count {
			if err := s.once(ctx); err != nil {
				return 0, err
			}
			l.next()
		}
	}
	return microseconds(start) / float64(count), nil
}

func (s *side) once(ctx context.Context) error {
	if s.op == "get" {
		return s.w.Get(ctx, 1, 0, s.local)
	}
	if err := s.w.Put(ctx, 1, 0, s.local); err != nil {
		return err
	}
	return s.w.Flush(ctx, 1)
}

// verify moves a pattern once and looks at every byte.
func (s *side) verify(ctx context.Context) error {
	s.fill()
	return s.move(ctx)
}

func (s *side) fill() {
	for i := range s.local {
		s.local[i], s.shared[i] = pattern(s.c.Rank(), i), pattern(s.c.Rank()+2, i)
	}
}

// move moves what is there once and checks what comes.
func (s *side) move(ctx context.Context) error {
	if err := s.w.Fence(ctx); err != nil {
		return err
	}
	if s.c.Rank() == 0 {
		if err := s.once(ctx); err != nil {
			return err
		}
	}
	if err := s.w.Fence(ctx); err != nil {
		return err
	}
	got, from := s.shared, 0
	if s.op == "get" {
		got, from = s.local, 3
	}
	if (s.op == "get") != (s.c.Rank() == 0) {
		return nil
	}
	for i, b := range got {
		if want := pattern(from, i); b != want {
			return fmt.Errorf("bench: %s: %w: byte %d of %d is %#x, not %#x", s.op, ErrWrong, i, len(got), b, want)
		}
	}
	return nil
}
