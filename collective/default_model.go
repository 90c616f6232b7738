package collective

import (
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// defaultModel is what plans are priced by until a site has measured its own (fisterra bench model): two ranks of one host
// over shared memory, and an EDR-class network. The points of host are means of two machines: a 2-core virtual machine
// whose cores are near each other (8 bytes in 0.1 µs), and a 16-core one of an Intel Xeon, whose cores are not (0.2 µs).
// What is quick on one of them costs more than four times as much on the other; the plans chosen by the mean are among the
// best on the first, and mostly on the second. Mapped memory is priced as this rank's own, so that it is used: through
// pieces it takes longer if several ranks take what one writes than between two ranks, which nothing here prices. Switch
// was measured with four ranks on the first machine.
var defaultModel = &plan.Model{
	Name: "default",
	Host: plan.Link{
		OneWay:   ofLengths(0.33, 0.39, 0.54, 0.87, 1.9, 4, 12, 52, 130, 260, 1400),
		Exchange: ofLengths(0.43, 0.53, 0.73, 1.5, 3.9, 9.2, 41, 170, 400, 930, 5100),
	},
	Net: plan.Link{
		OneWay:   plan.Linear(1.6e-6, 1/11e9),
		Exchange: plan.Linear(1.7e-6, 1/11e9),
		Gap:      1 / 11e9,
	},
	Combine:  ofLengths(0.01, 0.015, 0.022, 0.06, 0.2, 1.7, 6.6, 37, 95, 190, 1200),
	Folded:   ofLengths(0.0032, 0.0073, 0.01, 0.025, 0.67, 2, 9.2, 70, 130, 350, 1800),
	Copy:     ofLengths(0.0036, 0.0062, 0.02, 0.049, 0.2, 1.7, 6.4, 37, 91, 180, 670),
	Pieces:   ofLengths(0.2, 0.3, 0.52, 1.1, 2.9, 8.2, 40, 180, 530, 1100, 4800),
	Given:    ofLengths(0.11, 0.13, 0.28, 0.61, 2, 5.1, 17, 81, 160, 370, 1800),
	Read:     ofLengths(1.6, 1.6, 1.6, 1.9, 3.6, 8.3, 37, 210, 450, 1100, 6500),
	Cross:    0.2e-6,
	Overhead: 0.1e-6,
	Switch:   6e-6,
}

// ofLengths is the curve through times, in microseconds, of 0 B, 256 B, 2 KiB and so on.
func ofLengths(micros ...float64) plan.Curve {
	lengths := [...]int{0, 256, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 4 << 20, 8 << 20, 32 << 20}
	c := make(plan.Curve, len(micros))
	for i, t := range micros {
		c[i] = plan.Point{Bytes: lengths[i], Seconds: t * 1e-6}
	}
	return c
}

// tcpModel is the default where the network is TCP, whose long messages are announced first and whose
// hosts are busy with every byte. Its points are those of two ranks over the loopback interface of the first machine.
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
