package train

import (
	"encoding/json"

	"github.com/fisterra-hpc/fisterra/ps"
)

// Schema names the form of Result as JSON.
const Schema = "fisterra.train/1"

// Result is what a run has come to. The rank that evaluates has all of it; the others have what they know, without
// TestAccuracy, TrainLoss and SamplesPerSecond.
type Result struct {
	Schema           string  `json:"schema"`
	Data             string  `json:"data"`
	Model            string  `json:"model"`
	Mode             string  `json:"mode"` // async, sync, or collective without servers
	Ranks            int     `json:"ranks"`
	PS               int     `json:"ps"`
	Workers          int     `json:"workers"`
	Epochs           int     `json:"epochs"`
	Steps            int64   `json:"steps"`         // global steps made
	TestAccuracy     float64 `json:"test_accuracy"` // 0..1
	TrainLoss        float64 `json:"train_loss"`    // mean cross-entropy of the training set, nats
	Seconds          float64 `json:"seconds"`       // of training, without start-up
	SamplesPerSecond float64 `json:"samples_per_second"`
	Transport        string  `json:"transport"`
	Lost             []int   `json:"lost"` // ranks, never null

	Interrupted bool  `json:"interrupted,omitempty"` // stopped early, as asked
	Resumed     int64 `json:"resumed,omitempty"`     // the step of the checkpoint it began with

	Evaluated bool       `json:"-"` // this rank holds the accuracy and loss
	Server    ps.Summary `json:"-"` // of a server
}

// JSON is the result as one line.
func (r *Result) JSON() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic("train: a result that is no JSON: " + err.Error())
	}
	return append(b, '\n')
}

// Metric is how a run stands at a step, as the chief sees it.
type Metric struct {
	Step             int64    `json:"step"`
	Steps            int64    `json:"steps,omitempty"`    // planned; 0 if each worker has its own end
	Epoch            float64  `json:"epoch"`              // passes over the training set so far
	Loss             float64  `json:"loss"`               // mean of the chief's batches since the last metric, nats
	Accuracy         *float64 `json:"accuracy,omitempty"` // of the test set, where it was evaluated
	SamplesPerSecond float64  `json:"samples_per_second"` // of all workers since the last metric
	Seconds          float64  `json:"seconds"`            // since training began
}
