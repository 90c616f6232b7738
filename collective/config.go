package collective

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Config is how collectives on one communicator behave. All its ranks must use
// the same Model, Site, Force, Library and CheckAll, or they would run different plans; that is noticed as a
// mismatch. Communicators made of it from then on, by Dup, Split or Shrink, begin with the same, but for Nodes.
type Config struct {
	// Model prices the plans. Nil is that of Site or, without one for the transport, DefaultModel of the communicator.
	Model *plan.Model
	// Site overrides the model where a site has measured which plan is best.
	Site *Site
	// Force names the plan of a collective, whatever it costs, where it fits.
	Force map[plan.Kind]string
	// Library says what goes to the system's MPI library, on communicators that
	// stand on one.
	Library Library
	// CheckAll has all ranks compare what they called in the call itself. That includes calls whose messages may be too
	// long to carry a signature (over 2 KiB in all, or blocks with counts), and calls in which not every rank gets
	// something of every other: these have a barrier in front of them. In shared memory each call waits for all ranks
	// instead. Of an Alltoallv it also compares the counts of all ranks, by an alltoall. The collectives of a system's MPI
	// library carry no signature, so that all are Fisterra's own then; without CheckAll, ranks that wait in the library ask
	// the others.
	CheckAll bool
	// StallAfter is how long a collective waits before it logs which ranks have not come, and what the first of them does;
	// it waits up to a second for that rank's answer. 0 is 10 s; negative: never. Where messages go over a system's MPI
	// library only that first rank is known, and of the library's own collectives none.
	StallAfter time.Duration
	// Log receives stall reports; nil discards them.
	Log *slog.Logger

	// For simulations that carry sizes and no payloads. Phantom stands in for scratch memory: as long as a plan needs, up
	// to six times the longest vector, never touched. Charge is told how long work that is left out would take, by the
	// model. Nodes is the map of hosts, where the caller has one for all ranks.
	Phantom []byte
	Charge  func(time.Duration)
	Nodes   *plan.Nodes
}

const defaultStallAfter = 10 * time.Second

func (f *Config) stallAfter() time.Duration {
	if f.StallAfter == 0 {
		return defaultStallAfter
	}
	return f.StallAfter
}

// over is f for one transport: with those rules of the site that hold there, and with a model. That is f's own, else the
// site's if it holds there, else otherwise.
func (f *Config) over(transport string, otherwise *plan.Model) Config {
	own := *f
	if own.Site != nil {
		own.Site = own.Site.over(transport)
		if own.Model == nil {
			own.Model = own.Site.Model
		}
	}
	if own.Model == nil {
		own.Model = otherwise
	}
	return own
}

// passedOver says why the site's model prices nothing over a transport; empty: it does, or none or another is configured.
func (f *Config) passedOver(transport string) string {
	if f.Model != nil || f.Site == nil || f.Site.Model == nil || holds(f.Site.ModelTransport, transport) {
		return ""
	}
	return fmt.Sprintf("that of site %s was measured over %s, and ranks are here over %s", f.Site.Name, f.Site.ModelTransport, transport)
}

// comparesFirst reports whether CheckAll has the ranks compare a call before they do it by messages. They need not where
// each rank gets something of every other in messages that carry the signature. With counts they always do: the length of
// some blocks only this rank knows.
func (f *Config) comparesFirst(p *plan.Problem) bool {
	if !f.CheckAll || p.Kind == plan.Barrier {
		return false
	}
	n := p.TotalBytes()
	return p.Counts != nil || p.SendCounts != nil || n == 0 || n > signedBytes || !meetsAll(p.Kind)
}

// meetsAll reports whether every rank needs something of all others.
func meetsAll(k plan.Kind) bool {
	switch k {
	case plan.Barrier, plan.Allreduce, plan.Allgather, plan.Alltoall, plan.ReduceScatter:
		return true
	}
	return false
}

func (f *Config) log() *slog.Logger {
	if f.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return f.Log
}

// Configure sets how collectives on c behave from now on. Every rank calls it
// with the same plans in mind, while no collective is under way on c. Not collective: it sends nothing.
func Configure(c *mpi.Comm, f Config) error {
	if f.Model != nil {
		if err := f.Model.Check(); err != nil {
			return err
		}
	}
	for kind, name := range f.Force {
		if !known(kind, name) {
			return fmt.Errorf("collective: %w: no plan for %v is called %q; they are %v", ErrArgument, kind, name, knownNames(kind))
		}
	}
	if f.Site != nil {
		if err := f.Site.Check(); err != nil {
			return err
		}
	}
	if f.Nodes != nil && len(f.Nodes.Of) != c.Size() {
		return fmt.Errorf("collective: %w: Nodes are of %d ranks, %s has %d", ErrArgument, len(f.Nodes.Of), c.Name(), c.Size())
	}
	f.Force = maps.Clone(f.Force)
	s := stateOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configure(c, f)
	clear(s.last[:])
	clear(s.entries)
	return nil
}

// ConfigOf is what c was configured with. Not collective.
func ConfigOf(c *mpi.Comm) Config {
	s := stateOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.given
	f.Force = maps.Clone(f.Force)
	return f
}

// configure takes a Config that makes sense. The state is locked, or not shared yet.
func (s *state) configure(c *mpi.Comm, f Config) {
	s.given = f
	s.config = f.over(transportOf(c), defaultFor(c))
	s.nodes = f.Nodes
}

// Inherit implements mpi.Heritable.
func (s *state) Inherit(child *mpi.Comm) any {
	s.mu.Lock()
	f := s.given
	s.mu.Unlock()
	f.Nodes = nil // which is of other ranks
	return newState(child, f)
}

// known reports whether a plan can be asked for by name.
func known(k plan.Kind, name string) bool { return slices.Contains(knownNames(k), name) }

// knownNames are the planners' names and those of an arena's ways.
func knownNames(k plan.Kind) []string {
	names := append(planNames(k), MemoryPlan)
	if reads(k) {
		names = append(names, DirectPlan)
	}
	return names
}

func planNames(k plan.Kind) []string {
	var names []string
	for _, a := range plan.Planners(k) {
		names = append(names, a.Name)
	}
	return names
}
