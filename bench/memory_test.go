package bench

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// counted is memory of which it is known how much there is.
type counted struct {
	heap
	got, freed *int
}

func (m counted) get(c *mpi.Comm, n int) ([]float32, error) {
	*m.got++
	return m.heap.get(c, n)
}

func (m counted) free(*mpi.Comm, []float32) error {
	*m.freed++
	return nil
}

func TestLent(t *testing.T) {
	var got, freed int
	l := &lent{of: counted{got: &got, freed: &freed}}
	take := func(n int) []float32 {
		t.Helper()
		v, err := l.get(nil, n)
		if err != nil || len(v) != n {
			t.Fatalf("%d elements of %d, %v", len(v), n, err)
		}
		return v
	}
	long, short := take(100), take(10)
	for _, v := range [][]float32{long, short, nil} {
		if err := l.free(nil, v); err != nil {
			t.Fatal(err)
		}
	}
	a, b := take(5), take(7)
	if &a[0] != &short[0] || &b[0] != &long[0] || got != 2 {
		t.Errorf("not the shortest that is long enough, or %d times new memory", got)
	}
	c := take(1)
	for _, v := range [][]float32{a, b, c} {
		_ = l.free(nil, v) // it does not fail
	}
	if d := take(100); &d[0] != &long[0] || got != 3 {
		t.Errorf("what was lent in part is not whole again, or %d times new memory", got)
	} else {
		_ = l.free(nil, d)
	}
	if err := l.end(); err != nil || freed != 3 || len(l.idle) != 0 {
		t.Errorf("%d pieces are freed, want 3: %v", freed, err)
	}
}
