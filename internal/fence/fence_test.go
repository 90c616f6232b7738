package fence

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A writer that stores by Store and then looks, and a sleeper that says so, calls
// Everywhere or Here and then looks: one of the two sees the other.
func TestOneSeesTheOther(t *testing.T) {
	t.Run("everywhere", func(t *testing.T) { oneSeesTheOther(t, Register, Everywhere) })
	t.Run("here", func(t *testing.T) { oneSeesTheOther(t, RegisterHere, Here) })
}

func oneSeesTheOther(t *testing.T, register, fence func() bool) {
	if !register() {
		t.Skip("membarrier(2) is not to be had here: writers fence for themselves")
	}
	var word, sleeps [16]uint64 // lines of their own
	// Where others keep the processors busy the two seldom run at once, and a round takes a turn of each.
	enough := time.Now().Add(20 * time.Second)
	for round := range uint64(20_000) {
		if time.Now().After(enough) {
			t.Logf("%d rounds", round)
			break
		}
		var start atomic.Int32
		var wg sync.WaitGroup
		var missed [2]bool
		meet := func() {
			start.Add(1)
			for spins := 1; start.Load() < 2; spins++ {
				if spins%10_000 == 0 {
					runtime.Gosched()
				}
			}
		}
		v := round + 1
		wg.Go(func() {
			meet()
			Store(&word[0], v)
			missed[0] = atomic.LoadUint64(&sleeps[0]) < v
		})
		wg.Go(func() {
			meet()
			atomic.StoreUint64(&sleeps[0], v)
			fence()
			missed[1] = atomic.LoadUint64(&word[0]) < v
		})
		wg.Wait()
		if missed[0] && missed[1] {
			t.Fatalf("round %d: neither saw the other", round)
		}
	}
}

// Who finds what Store has written finds what was written before.
func TestStoreComesLast(t *testing.T) {
	const rounds = 200_000
	var data [8]uint64 // of one line, as a cell is
	var flag, seen [8]uint64
	enough := time.Now().Add(20 * time.Second)
	var wg sync.WaitGroup
	defer wg.Wait()
	var stop atomic.Bool
	defer stop.Store(true)
	wg.Go(func() {
		for v := uint64(1); v <= rounds && !stop.Load(); v++ {
			for i := range data {
				data[i] = v
			}
			Store(&flag[0], v)
			for spins := 1; atomic.LoadUint64(&seen[0]) != v && !stop.Load(); spins++ {
				if spins%10_000 == 0 {
					runtime.Gosched()
				}
			}
		}
	})
	for v := uint64(1); v <= rounds; v++ {
		for spins := 1; atomic.LoadUint64(&flag[0]) != v; spins++ {
			if spins%10_000 == 0 {
				runtime.Gosched()
			}
			if spins%1_000_000 == 0 && time.Now().After(enough) {
				t.Logf("%d rounds", v)
				return
			}
		}
		for i, got := range data {
			if got != v {
				t.Fatalf("round %d: word %d is %d", v, i, got)
			}
		}
		atomic.StoreUint64(&seen[0], v)
	}
}
