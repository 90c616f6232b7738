package collective

import "github.com/fisterra-hpc/fisterra/collective/plan"

// defaultModel is what plans are priced by until a site has measured its own
// (fisterra bench model): two ranks of one host over shared memory, and an
// EDR-class network. The points of host are those of Fisterra's own
// shared memory transport inside collectives on a 2-core virtual machine, whose buffers have
// just been written, unlike those of a ping-pong; Switch is that of four ranks on it.
var defaultModel = &plan.Model{
	Name: "default",
	Host: plan.Link{
		OneWay:   plan.Curve{{Bytes: 0, Seconds: 0.25e-6}, {Bytes: 4 << 10, Seconds: 1.2e-6}, {Bytes: 64 << 10, Seconds: 5.5e-6}, {Bytes: 1 << 20, Seconds: 80e-6}, {Bytes: 16 << 20, Seconds: 2e-3}},
		Exchange: plan.Curve{{Bytes: 0, Seconds: 0.35e-6}, {Bytes: 4 << 10, Seconds: 1.5e-6}, {Bytes: 64 << 10, Seconds: 8e-6}, {Bytes: 1 << 20, Seconds: 110e-6}, {Bytes: 4 << 20, Seconds: 1e-3}, {Bytes: 16 << 20, Seconds: 5e-3}},
	},
	Net: plan.Link{
		OneWay:   plan.Linear(1.6e-6, 1/11e9),
		Exchange: plan.Linear(1.7e-6, 1/11e9),
		Gap:      1 / 11e9,
	},
	Combine:  plan.Curve{{Bytes: 0, Seconds: 20e-9}, {Bytes: 256 << 10, Seconds: 6e-6}, {Bytes: 16 << 20, Seconds: 1.6e-3}},
	Copy:     plan.Curve{{Bytes: 0, Seconds: 10e-9}, {Bytes: 256 << 10, Seconds: 10e-6}, {Bytes: 16 << 20, Seconds: 1.8e-3}},
	Overhead: 0.1e-6,
	Switch:   6e-6,
}

// DefaultModel is the model used where none is configured.
func DefaultModel() *plan.Model { m := *defaultModel; return &m }
