package collective

import "github.com/fisterra-hpc/fisterra/collective/plan"

// defaultModel is what plans are priced by until a site has measured its own
// (fisterra bench model): two ranks of one host over shared memory, and an
// EDR-class network. The points of host are those of Fisterra's own
// shared memory transport on a 2-core virtual machine.
var defaultModel = &plan.Model{
	Name: "default",
	Host: plan.Link{
		OneWay:   plan.Curve{{Bytes: 0, Seconds: 0.25e-6}, {Bytes: 4 << 10, Seconds: 1.2e-6}, {Bytes: 64 << 10, Seconds: 4e-6}, {Bytes: 1 << 20, Seconds: 45e-6}, {Bytes: 16 << 20, Seconds: 1e-3}},
		Exchange: plan.Curve{{Bytes: 0, Seconds: 0.35e-6}, {Bytes: 4 << 10, Seconds: 1.8e-6}, {Bytes: 64 << 10, Seconds: 9e-6}, {Bytes: 1 << 20, Seconds: 100e-6}, {Bytes: 16 << 20, Seconds: 2.2e-3}},
	},
	Net: plan.Link{
		OneWay:   plan.Linear(1.6e-6, 1/11e9),
		Exchange: plan.Linear(1.7e-6, 1/11e9),
		Gap:      1 / 11e9,
	},
	Combine:  plan.Curve{{Bytes: 0, Seconds: 20e-9}, {Bytes: 256 << 10, Seconds: 6e-6}, {Bytes: 16 << 20, Seconds: 1.6e-3}},
	Copy:     plan.Curve{{Bytes: 0, Seconds: 10e-9}, {Bytes: 256 << 10, Seconds: 10e-6}, {Bytes: 16 << 20, Seconds: 1.8e-3}},
	Overhead: 0.1e-6,
}

// DefaultModel is the model used where none is configured.
func DefaultModel() *plan.Model { m := *defaultModel; return &m }
