package train

import "github.com/fisterra-hpc/fisterra/ps"

// What a run uses unless told otherwise: with these numbers the perceptron
// reaches 96.5 % and softmax regression 93.5 % of the optdigits test set.
const (
	DefaultEpochs = 30
	DefaultBatch  = 48
	DefaultHidden = 256
)

// DefaultRate is the learning rate to begin with where all workers make each
// step together. In Async mode, where each worker's share of the batch makes an update,
// the square root of the number of workers divides it.
func DefaultRate(model string, o ps.Optimizer) float64 {
	switch {
	case o == ps.Adam:
		return 0.002
	case o == ps.SGD:
		return 1
	case model == "softmax":
		return 0.1
	}
	return 0.2
}

// warmup is the share of all updates in which the rate rises: with full steps
// at the beginning hidden units can die.
const warmup = 0.1
