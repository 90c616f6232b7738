package collective

import (
	"slices"

	"github.com/fisterra-hpc/fisterra/collective/plan"
)

// way is how a collective is done.
type way uint8

const (
	byMessages way = iota
	byLibrary
	bySlots
	byPieces
	byReading
)

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
