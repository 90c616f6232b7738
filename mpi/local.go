package mpi

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

// LocalOptions describe worlds whose ranks are goroutines of one process.
type LocalOptions struct {
	// Fabric connects the ranks; nil is a new one without delays or faults.
	Fabric *sim.Fabric
	// Pull lets ranks read each other's memory, as on one host.
	Pull bool
	// Host names a rank's host; nil puts all on "sim".
	Host func(rank int) string
	// Still: progress is made only by waiting ranks, as virtual time needs.
	// The worlds of a virtual fabric are closed after Fabric.Run has returned.
	Still bool
	// Opened is given each rank's end of the fabric, for what only a
	// simulation can do (sim.Provider.Compute). May be nil.
	Opened func(rank int, p *sim.Provider)
	Log    *slog.Logger
}

// Local opens n worlds in this process over a simulated fabric: element i is
// rank i's. Each is used by that rank's goroutine, as if it were a process.
func Local(n int, o LocalOptions) ([]*World, error) {
	if o.Fabric == nil {
		o.Fabric = sim.New(sim.Config{Ranks: n, Log: o.Log})
	}
	if o.Host == nil {
		o.Host = func(int) string { return "sim" }
	}
	providers := make([]transport.Provider, n)
	members := make([]Member, n)
	for r := range n {
		p, err := o.open(r)
		if err != nil {
			return nil, fmt.Errorf("mpi: rank %d: %w", r, err)
		}
		providers[r] = p
		members[r] = Member{Rank: r, Position: r, Host: o.Host(r), Addresses: map[string][]byte{p.Name(): p.Address()}}
	}
	circle := &circle{living: n, gone: make([]bool, n), left: make(chan struct{})}
	worlds := make([]*World, n)
	for r := range n {
		a := Assembly{Rank: r, Members: members, Providers: providers[r : r+1], Launcher: "sim", Log: o.Log, Still: o.Still}
		if !o.Still {
			a.Membership = localSeat{circle, o.Fabric, r}
		}
		w, err := Assemble(a)
		if err != nil {
			return nil, err
		}
		worlds[r] = w
	}
	return worlds, nil
}

// open opens a rank's end of the fabric.
func (o *LocalOptions) open(rank int) (transport.Provider, error) {
	if o.Pull {
		p, err := o.Fabric.OpenMemory(rank)
		if err == nil && o.Opened != nil {
			o.Opened(rank, p.Provider)
		}
		return p, err
	}
	p, err := o.Fabric.Open(rank)
	if err == nil && o.Opened != nil {
		o.Opened(rank, p)
	}
	return p, err
}

// localSeat is a rank's place in the circle. A rank that the fabric has killed
// says nothing any more: its own view is that everybody else is lost.
type localSeat struct {
	*circle
	fabric *sim.Fabric
	rank   int
}

func (s localSeat) AnnounceLost(rank int, _ string) {
	if !s.fabric.Killed(s.rank) {
		s.leave(rank)
	}
}

func (s localSeat) Bye(ctx context.Context) error {
	if s.fabric.Killed(s.rank) {
		return nil
	}
	return s.bye(ctx, s.rank)
}

// circle is what the seats of worlds in one process share: who is still there. Losses come from the fabric.
type circle struct {
	mu     sync.Mutex
	living int           // not gone
	gone   []bool        // by rank: lost, or has said goodbye
	left   chan struct{} // closed when nobody is living
}

func (c *circle) Start(MembershipEvents) {}
func (c *circle) Abort(int, string)      {}
func (c *circle) Close()                 {}

func (c *circle) leave(rank int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone[rank] {
		return
	}
	c.gone[rank] = true
	if c.living--; c.living == 0 {
		close(c.left)
	}
}

func (c *circle) stays(rank int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone[rank]
}

func (c *circle) bye(ctx context.Context, rank int) error {
	c.leave(rank)
	select {
	case <-c.left:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
