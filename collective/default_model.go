package collective

import (
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// defaultModel is what plans are priced by until a site has measured its own
// (fisterra bench model): two ranks of one host over shared memory, and an
// EDR-class network. The points of host are those of Fisterra's own
// shared memory transport inside collectives on a 2-core virtual machine, whose buffers have
// just been written, unlike those of a ping-pong, rounded from several runs of fisterra bench model;
// Switch is that of four ranks on it.
var defaultModel = &plan.Model{
	Name: "default",
	Host: plan.Link{
		OneWay: plan.Curve{{Bytes: 0, Seconds: 0.25e-6}, {Bytes: 8 << 10, Seconds: 0.6e-6}, {Bytes: 32 << 10, Seconds: 2e-6},
			{Bytes: 128 << 10, Seconds: 4.7e-6}, {Bytes: 512 << 10, Seconds: 16e-6}, {Bytes: 2 << 20, Seconds: 70e-6}, {Bytes: 8 << 20, Seconds: 300e-6}},
		Exchange: plan.Curve{{Bytes: 0, Seconds: 0.4e-6}, {Bytes: 8 << 10, Seconds: 0.95e-6}, {Bytes: 32 << 10, Seconds: 3.6e-6},
			{Bytes: 128 << 10, Seconds: 9e-6}, {Bytes: 512 << 10, Seconds: 41e-6}, {Bytes: 2 << 20, Seconds: 330e-6}, {Bytes: 8 << 20, Seconds: 1.7e-3}},
	},
	Net: plan.Link{
		OneWay:   plan.Linear(1.6e-6, 1/11e9),
		Exchange: plan.Linear(1.7e-6, 1/11e9),
		Gap:      1 / 11e9,
	},
	Combine: plan.Curve{{Bytes: 0, Seconds: 20e-9}, {Bytes: 128 << 10, Seconds: 2.3e-6}, {Bytes: 2 << 20, Seconds: 47e-6}, {Bytes: 8 << 20, Seconds: 215e-6}},
	Copy:    plan.Curve{{Bytes: 0, Seconds: 5e-9}, {Bytes: 128 << 10, Seconds: 2.3e-6}, {Bytes: 2 << 20, Seconds: 38e-6}, {Bytes: 8 << 20, Seconds: 180e-6}},
	Pieces: plan.Curve{{Bytes: 0, Seconds: 0.2e-6}, {Bytes: 256, Seconds: 0.24e-6}, {Bytes: 2 << 10, Seconds: 0.5e-6}, {Bytes: 8 << 10, Seconds: 1.2e-6},
		{Bytes: 32 << 10, Seconds: 3e-6}, {Bytes: 128 << 10, Seconds: 6.5e-6}, {Bytes: 512 << 10, Seconds: 31e-6}, {Bytes: 2 << 20, Seconds: 140e-6}, {Bytes: 8 << 20, Seconds: 1e-3}},
	Read: plan.Curve{{Bytes: 0, Seconds: 2.6e-6}, {Bytes: 8 << 10, Seconds: 3.4e-6}, {Bytes: 128 << 10, Seconds: 12e-6},
		{Bytes: 512 << 10, Seconds: 47e-6}, {Bytes: 2 << 20, Seconds: 230e-6}, {Bytes: 8 << 20, Seconds: 1.5e-3}},
	Cross:    0.18e-6,
	Overhead: 0.1e-6,
	Switch:   6e-6,
}

// tcpModel is the default where the network is TCP, whose long messages are announced first and whose
// hosts are busy with every byte. Its points are those of two ranks over the loopback interface of that machine.
var tcpModel = func() *plan.Model {
	m := *defaultModel
	m.Net = plan.Link{
		OneWay: plan.Curve{{Bytes: 0, Seconds: 5e-6}, {Bytes: 8 << 10, Seconds: 6.6e-6}, {Bytes: 32 << 10, Seconds: 9.7e-6},
			{Bytes: 128 << 10, Seconds: 35e-6}, {Bytes: 512 << 10, Seconds: 82e-6}, {Bytes: 2 << 20, Seconds: 260e-6},
			{Bytes: 4 << 20, Seconds: 480e-6}, {Bytes: 8 << 20, Seconds: 1.2e-3}},
		Exchange: plan.Curve{{Bytes: 0, Seconds: 6.7e-6}, {Bytes: 8 << 10, Seconds: 8.4e-6}, {Bytes: 32 << 10, Seconds: 12.5e-6},
			{Bytes: 128 << 10, Seconds: 50e-6}, {Bytes: 512 << 10, Seconds: 92e-6}, {Bytes: 2 << 20, Seconds: 360e-6},
			{Bytes: 4 << 20, Seconds: 850e-6}, {Bytes: 8 << 20, Seconds: 2.3e-3}},
		Gap: defaultModel.Net.Gap,
	}
	m.NetPartBytes = 2 << 20 // each message is announced, and the processor that reduces copies, too: nothing overlaps
	return &m
}()

// DefaultModel is a copy of the model used on c where none is configured.
func DefaultModel(c *mpi.Comm) *plan.Model { return defaultFor(c).Clone() }

// defaultFor is the model used on c where none is configured.
func defaultFor(c *mpi.Comm) *plan.Model {
	if c.Size() == 1 {
		return defaultModel
	}
	name, _ := c.Transport((c.Rank() + 1) % c.Size())
	return defaultOver(name)
}

// defaultOver is the model of ranks of which one reaches another by a transport.
func defaultOver(transport string) *plan.Model {
	switch transport {
	case "tcp", "shm": // which has TCP between hosts
		return tcpModel
	}
	return defaultModel
}
