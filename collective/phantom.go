package collective

import (
	"fmt"
	"time"

	"github.com/fisterra-hpc/fisterra/collective/plan"
)

// scratch is n bytes for an execution. Where payloads are sizes only, it is
// memory that nobody touches.
func (s *state) scratch(n int) ([]byte, error) {
	phantom := s.config.Phantom
	switch {
	case !s.sizesOnly || phantom == nil:
		return make([]byte, n), nil
	case n > len(phantom):
		return nil, fmt.Errorf("%w: Config.Phantom has %d bytes, the plan needs %d", ErrArgument, len(phantom), n)
	}
	return phantom[:n], nil
}

// charge accounts for work that is not done because payloads are sizes only.
func (s *state) charge(cost func(*plan.Model) float64) {
	if f := s.config.Charge; f != nil {
		f(time.Duration(cost(s.config.Model) * float64(time.Second)))
	}
}
