package mpi

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Member is what every rank knows about one rank of its world.
type Member struct {
	Rank     int
	Position int    // (node, local id) order, from which roles follow
	Host     string // name of its host
	// Processors is a hexadecimal mask of the processors that the rank may run on; "": not known.
	Processors string
	// Addresses are what its providers published, by provider name.
	Addresses map[string][]byte
}

// Assembly is what a world is made of. Init fills it for programs;
// simulations and tests do it themselves.
type Assembly struct {
	Rank    int
	Members []Member // one for each rank, in rank order
	// Providers in order of preference. The world owns them and closes them.
	Providers []transport.Provider
	// Set is the sleep that the providers were opened with; nil if
	// they own the passing of time (transport.Sleeper).
	Set *Sleep
	// Membership carries losses and goodbyes. nil: losses are what providers
	// report, and Close does not wait for the other ranks.
	Membership Membership
	Launcher   string
	Log        *slog.Logger
	// Still turns the keeper off: no progress is made unless a caller waits. For
	// simulated time, where ranks run one at a time.
	Still bool
}

// Membership is how a world learns of losses and says goodbye.
type Membership interface {
	// Start begins to deliver events. They come from goroutines of its own.
	Start(MembershipEvents)
	// AnnounceLost tells all ranks of a loss that this rank has noticed, or that it gives itself up: then all
	// others are lost to it. It must not block or call the world, whose lock is held.
	AnnounceLost(rank int, why string)
	// Bye says goodbye and blocks until every living rank has said it and the losses of the others have been delivered, or
	// ctx ends.
	Bye(ctx context.Context) error
	// Abort tells all ranks that this one ends the job.
	Abort(code int, reason string)
	Close()
}

// MembershipEvents is where a Membership delivers.
type MembershipEvents interface {
	PeerLost(rank int, why string)
}

// Sleep is the set of descriptors on which a world sleeps.
type Sleep = sleepSet

// NewSleep makes an empty set.
func NewSleep() (*Sleep, error) { return newSleepSet() }

// Assemble makes a world of this rank from open providers. After an error the providers, the set and the membership are
// the caller's to close.
func Assemble(a Assembly) (*World, error) {
	size := len(a.Members)
	if a.Rank < 0 || a.Rank >= size {
		return nil, &Error{Op: "init", Rank: a.Rank, Peer: ProcNull, Tag: AnyTag, Err: ErrRank, Detail: fmt.Sprintf("%d members", size)}
	}
	if a.Log == nil {
		a.Log = slog.New(slog.DiscardHandler)
	}
	e := newEngine(a.Rank, size, a.Log)
	e.use(a.Providers...)
	e.set = a.Set
	for _, p := range a.Providers {
		if s, ok := p.(transport.Sleeper); ok {
			e.sleeper = s
		}
	}
	if e.sleeper == nil && e.set == nil {
		var err error
		if e.set, err = newSleepSet(); err != nil {
			return nil, fmt.Errorf("mpi: %w", err)
		}
	}
	w := newWorld(a, e)
	e.members = a.Members
	if !a.Still { // a simulation has too many ranks to find a route to each, also to those that it never talks to
		for _, m := range a.Members {
			if r := e.route(m.Rank); r.provider < 0 && m.Rank != a.Rank {
				if e.set != a.Set {
					e.set.close()
				}
				return nil, &Error{Op: "init", Rank: a.Rank, Peer: m.Rank, Host: m.Host, Tag: AnyTag, Err: ErrTransport, Detail: r.reason}
			}
		}
	}
	e.homes = w.homes
	home := w.homes.of(a.Rank)
	e.spinTime, e.home, e.pause = spinAlone, osyield.NewHome(home), osyield.NewPause()
	if e.crowded = w.crowded(); e.crowded {
		e.home, e.couples = osyield.NewCrowdedHome(home), w.homes.most() <= 2
		for _, p := range e.providers {
			if c, ok := p.(transport.Crowder); ok {
				c.Crowd()
			}
		}
	}
	w.adopt(e)
	e.onLoss = w.noticeLoss
	if s, ok := a.Membership.(localSeat); ok {
		e.stays = s.stays
	}
	if !a.Still {
		e.startKeeper()
	}
	if a.Membership != nil {
		a.Membership.Start(w)
	}
	return w, nil
}
