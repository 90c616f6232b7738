package collective

import (
	"slices"

	"github.com/fisterra-hpc/fisterra/collective/plan"
)

// way is how a collective is done.
type way uint8

const (
	byMessages way = iota // by a plan
	byLibrary             // by the system's MPI library
	bySlots               // in the arena: short vectors, all at once
	byPieces              // long ones, in steps, which the ranks may agree to replace by reading
	byDirect              // out of each other's buffers
)

// inArena reports whether the ranks meet in the arena for it.
func (w way) inArena() bool { return w >= bySlots }

// choose picks the planner for a problem: the forced one, the site's, or the
// cheapest. index is its position among the planners of the collective. The state is locked.
// All ranks get the same answer.
func (s *state) choose(p *plan.Problem) (a plan.Planner, index int) {
	a, _ = s.config.choose(p)
	all := plan.Planners(p.Kind)
	return a, slices.IndexFunc(all, func(b plan.Planner) bool { return a.Name == b.Name })
}

// choose returns the planner and why it was taken.
func (f *Config) choose(p *plan.Problem) (plan.Planner, string) {
	if name, ok := f.Force[p.Kind]; ok {
		if a, ok := plan.Named(p.Kind, name); ok && a.Why(p) == "" {
			return a, "forced"
		}
	}
	if f.Site != nil {
		if a, ok := f.Site.pick(p); ok {
			return a, "site table " + f.Site.Name
		}
	}
	model := f.Model
	return plan.Rank(p, model)[0].Planner, "cheapest by model " + model.Name
}
