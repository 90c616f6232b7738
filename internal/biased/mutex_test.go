package biased

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// favoured is a lock that comes to have owners, where there can be any.
func favoured(t testing.TB) *Mutex {
	m := new(Mutex)
	m.Favour()
	if !m.favours || goroutine() == 0 {
		t.Log("locks stay ordinary here")
	}
	return m
}

// owners reports whether a lock can have one here.
func owners(m *Mutex) bool { return m.favours && goroutine() != 0 }

// guarded is data that only the holder of the lock may touch. If two do at a time, steps are lost.
type guarded struct{ steps uint64 }

// use takes so many steps, and looks whether another has taken some meanwhile.
func (g *guarded) use(t *testing.T, steps int) {
	before := g.steps
	for range steps {
		g.step()
	}
	if g.steps != before+uint64(steps) {
		t.Error("two have the lock")
	}
}

//go:noinline
func (g *guarded) step() { g.steps++ }

func TestOneAtATime(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := favoured(t)
	rows := 300
	if owners(m) {
		rows = 6_000 // so that a missing fence shows
	}
	var (
		g    guarded
		want uint64
		mu   sync.Mutex
		wg   sync.WaitGroup
	)
	for i := range uint64(4) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, i))
			var all uint64
			for range rows {
				// Long rows of one goroutine, after which the lock is its own, and short ones of several by turns.
				row := 1 + rnd.IntN(3)
				if rnd.IntN(4) == 0 {
					row = ownAfter + rnd.IntN(2*ownAfter)
				}
				for range row {
					if rnd.IntN(2) == 0 {
						m.Lock()
					} else if !m.TryLock() {
						continue
					}
					steps := rnd.IntN(20)
					g.use(t, steps)
					m.Unlock()
					all += uint64(steps)
				}
				if rnd.IntN(8) == 0 {
					runtime.Gosched()
				}
			}
			mu.Lock()
			want += all
			mu.Unlock()
		})
	}
	wg.Wait()
	if g.steps != want {
		t.Errorf("%d steps are left of %d", g.steps, want)
	}
}

// take takes the lock and gives it back n times, and counts that.
func take(m sync.Locker, n int) (times int) {
	for range n {
		m.Lock()
		times++
		m.Unlock()
	}
	return times
}

func TestWhoTakesItInARowOwnsIt(t *testing.T) {
	m := favoured(t)
	if !owners(m) {
		t.Skip("locks stay ordinary here")
	}
	take(m, ownAfter-1)
	if m.owned.Load() != nil {
		t.Error("owned before its time")
	}
	take(m, 1)
	mine := m.owned.Load()
	if mine == nil {
		t.Fatal("nobody's after that many acquisitions in a row")
	}
	m.Lock()
	if m.by != mine || mine.inside != 1 {
		t.Error("its owner took it the ordinary way")
	}
	another := make(chan bool)
	go func() { another <- m.TryLock() }()
	if <-another {
		t.Fatal("taken while its owner had it")
	}
	m.Unlock()
	if m.owned.Load() != nil {
		t.Error("owned after another wanted it")
	}
	go func() {
		m.Lock()
		another <- m.by == &m.ordinary
		m.Unlock()
	}()
	if !<-another {
		t.Error("another took it as if it were his")
	}
	take(m, ownAfter)
	if m.owned.Load() != mine {
		t.Error("whose it was before does not own it by the same claim")
	}
}

// An owner who keeps the lock keeps others waiting, asleep, until it gives it back.
func TestLockWaitsForItsOwner(t *testing.T) {
	m := favoured(t)
	for round := range 50 {
		take(m, ownAfter+1)
		m.Lock()
		held, got := true, make(chan struct{})
		go func() {
			m.Lock()
			if held {
				t.Errorf("round %d: taken while another had it", round)
			}
			m.Unlock()
			close(got)
		}()
		for m.owned.Load() != nil {
			runtime.Gosched()
		}
		held = false
		m.Unlock()
		select {
		case <-got:
		case <-time.After(20 * time.Second):
			t.Fatalf("round %d: still waiting", round)
		}
	}
}

// An owner that loses the lock between its two looks whether it owns it takes it the ordinary way, and keeps nobody waiting.
// Among so many attempts to take it away some fall into that gap.
func TestLostWhileLocking(t *testing.T) {
	m := favoured(t)
	if !owners(m) {
		t.Skip("locks stay ordinary here")
	}
	var (
		g        guarded
		over     atomic.Bool
		wg       sync.WaitGroup
		finished = make(chan struct{})
	)
	wg.Go(func() {
		for !over.Load() {
			m.Lock()
			g.step()
			m.Unlock()
		}
	})
	wg.Go(func() {
		defer over.Store(true)
		for range 3_000 {
			for m.owned.Load() == nil {
				runtime.Gosched()
			}
			m.Lock()
			g.use(t, 10)
			m.Unlock()
		}
	})
	go func() { wg.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(time.Minute):
		t.Fatal("still waiting")
	}
}

// Whoever has the lock can tell that others wait for it, an owner as well.
func TestWanted(t *testing.T) {
	for name, before := range map[string]func(*Mutex){"ordinary": func(*Mutex) {}, "own": takeAll} {
		t.Run(name, func(t *testing.T) {
			m := favoured(t)
			before(m)
			m.Lock()
			if m.Wanted() {
				t.Error("wanted, and nobody waits")
			}
			got := make(chan struct{})
			go func() {
				take(m, 1)
				close(got)
			}()
			for end := time.Now().Add(20 * time.Second); !m.Wanted(); runtime.Gosched() {
				if time.Now().After(end) {
					t.Fatal("not wanted, and another waits")
				}
			}
			m.Unlock()
			<-got
			if m.Wanted() {
				t.Error("wanted after all have had it")
			}
		})
	}
}

// Goroutines own the lock by turns without an allocation, and more of them than it remembers do without harm.
func TestOwnersByTurns(t *testing.T) {
	m := favoured(t)
	turn := func() (take func()) {
		stolen, back := make(chan struct{}), make(chan struct{})
		t.Cleanup(func() { close(stolen) })
		go func() {
			for range stolen {
				takeAll(m)
				back <- struct{}{}
			}
		}()
		return func() { stolen <- struct{}{}; <-back }
	}
	others := []func(){turn(), turn()}
	round := func() {
		takeAll(m)
		for _, take := range others {
			take()
		}
	}
	round()
	if n := testing.AllocsPerRun(20, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for len(others) < mostClaims+2 {
		others = append(others, turn())
	}
	for range 3 {
		round()
	}
	if len(m.claims) > mostClaims || owners(m) && len(m.claims) < mostClaims {
		t.Errorf("%d claims are remembered", len(m.claims))
	}
}

// takeAll makes the lock the calling goroutine's.
func takeAll(m *Mutex) { take(m, ownAfter+1) }

// BenchmarkLock takes locks 1,000 times over.
func BenchmarkLock(b *testing.B) {
	b.Run("own", func(b *testing.B) {
		m := favoured(b)
		take(m, ownAfter)
		for b.Loop() {
			take(m, 1000)
		}
	})
	b.Run("ordinary", func(b *testing.B) {
		m := new(Mutex)
		for b.Loop() {
			take(m, 1000)
		}
	})
	b.Run("sync", func(b *testing.B) {
		m := new(sync.Mutex)
		for b.Loop() {
			take(m, 1000)
		}
	})
	// What it costs to take it from its owner.
	b.Run("dispossess", func(b *testing.B) {
		m := favoured(b)
		take(m, ownAfter)
		mine := m.last
		for b.Loop() {
			m.owned.Store(mine)
			if !m.dispossess() {
				b.Fatal("its owner is inside")
			}
		}
	})
}
