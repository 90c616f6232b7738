package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
)

// Rank 1 maps what rank 0 has, reads and writes it, and keeps the mapping when rank 0 frees the memory.
func TestMap(t *testing.T) {
	const n, at = 3 << 20, 12_345
	tests := []struct {
		name     string
		windowed bool
		after    byte // what is in memory that was freed
	}{
		{"alone", false, 0},
		{"in a window before", true, 7},
	}
	for _, k := range tests {
		t.Run(k.name, func(t *testing.T) {
			mpitest.Together(t, mpitest.SharedMemoryWorlds(t, 2), func(ctx context.Context, c *mpi.Comm) error {
				where := make([]int64, 2)
				if c.Rank() == 0 {
					buf, err := mpi.Alloc[byte](c, n)
					if err != nil {
						return err
					}
					if k.windowed {
						w, err := mpi.NewWindow(ctx, c, buf)
						if err != nil {
							return err
						}
						if err := w.Free(ctx); err != nil {
							return err
						}
					}
					part := buf[at:]
					place, ok := mpi.Locate(c, part)
					if !ok || place.OffsetBytes != at {
						return fmt.Errorf("located at %+v, %v", place, ok)
					}
					if again, _ := mpi.Locate(c, buf[at:at+1]); again != place {
						return fmt.Errorf("%+v and then %+v", place, again)
					}
					for _, b := range [][]byte{nil, buf[:0], make([]byte, 5)} {
						if _, ok := mpi.Locate(c, b); ok {
							return fmt.Errorf("%d bytes, of the heap or none, were located", len(b))
						}
					}
					part[0] = 5
					where[0], where[1] = int64(place.Slab), int64(place.OffsetBytes)
					if err := mpi.Send(ctx, c, where, 1, 0); err != nil {
						return err
					}
					if _, err := mpi.Recv(ctx, c, where, 1, 0); err != nil {
						return err
					}
					if part[0] != 7 {
						return fmt.Errorf("rank 1 wrote 7, here is %d", part[0])
					}
					if err := mpi.Free(c, buf); err != nil {
						return err
					}
					return mpi.Send(ctx, c, where, 1, 0)
				}
				if k.windowed {
					w, err := mpi.NewWindow(ctx, c, []byte(nil))
					if err != nil {
						return err
					}
					if err := w.Free(ctx); err != nil {
						return err
					}
				}
				if _, err := mpi.Recv(ctx, c, where, 0, 0); err != nil {
					return err
				}
				slab := uint64(where[0])
				m, err := c.Map(ctx, 0, slab)
				if err != nil {
					return err
				}
				second, err := c.Map(ctx, 0, slab)
				if err != nil {
					return err
				}
				if &second.Bytes()[0] != &m.Bytes()[0] {
					return errors.New("mapped twice")
				}
				second.Release()
				mem := m.Bytes()[where[1]:]
				if mem[0] != 5 {
					return fmt.Errorf("rank 0 wrote 5, here is %d", mem[0])
				}
				mem[0] = 7
				if err := mpi.Send(ctx, c, where, 0, 0); err != nil {
					return err
				}
				if _, err := mpi.Recv(ctx, c, where, 0, 0); err != nil {
					return err
				}
				if mem[0] != k.after {
					return fmt.Errorf("in memory that was freed is %d, want %d", mem[0], k.after)
				}
				m.Release()
				if _, err := c.Map(ctx, 0, slab); err == nil {
					return errors.New("memory that was freed was mapped again")
				}
				if _, err := c.Map(ctx, 2, slab); !errors.Is(err, mpi.ErrRank) {
					return fmt.Errorf("rank 2 of 2: %v", err)
				}
				if _, err := c.Map(ctx, 1, slab); !errors.Is(err, mpi.ErrTransport) {
					return fmt.Errorf("this rank itself: %v", err)
				}
				return nil
			})
		})
	}
}
