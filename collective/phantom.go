package collective

import (
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
)

// scratch is n bytes for an execution. Where payloads are sizes only, it is
// memory that nobody touches.
func (s *state) scratch(n int) []byte {
	if s.sizesOnly && s.config.Phantom != nil {
		return s.config.Phantom[:n]
	}
	return make([]byte, n)
}

// charge accounts for work that is not done because payloads are sizes only.
func (s *state) charge(cost func(*plan.Model) float64) {
	if f := s.config.Charge; f != nil {
		f(time.Duration(cost(s.config.Model) * float64(time.Second)))
	}
}
