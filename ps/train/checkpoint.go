package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
)

// checkpointForm names the form of a checkpoint file.
const checkpointForm = "fisterra.checkpoint/3"

// vector is a part of the state, by its name in a checkpoint.
type vector[F Float] struct {
	name    string
	numbers []F
}

// state is what a checkpoint holds: the parameters, and the optimizer's vectors.
func (w *worker[F]) state() []vector[F] {
	state := []vector[F]{{"params", w.params}}
	for i, slot := range w.slots {
		state = append(state, vector[F]{fmt.Sprintf("slot%d", i+1), slot})
	}
	return state
}

// infinite is the first number of a vector that is not finite, if there is one.
func (v vector[F]) infinite() (x float64, found bool) {
	for _, n := range v.numbers {
		if n-n != 0 {
			return float64(n), true
		}
	}
	return 0, false
}

// save writes w.params and w.slots, which belong to step w.global, as the state to resume from. If training has
// diverged, that is an error, and the checkpoint saved before stays.
func (w *worker[F]) save() error {
	w.note("saving a checkpoint")
	for _, v := range w.state() {
		if x, found := v.infinite(); found {
			return w.diverged("a number of "+v.name, x)
		}
	}
	if w.cfg.BeforeSave != nil {
		if err := w.cfg.BeforeSave(); err != nil {
			return err
		}
	}
	var tensors []namedTensor
	for _, v := range w.state() {
		tensors = append(tensors, tensor(v.name, v.numbers))
	}
	meta := map[string]string{}
	for _, id := range w.identity() {
		meta[id.what] = id.value
	}
	meta["step"] = strconv.FormatInt(w.global, 10)
	meta[stepsPerEpoch] = strconv.FormatInt(w.plan.perEpoch, 10)
	if err := writeTensors(w.cfg.Checkpoint, meta, tensors); err != nil {
		if w.cfg.BeforeSave != nil { // another run that has taken the file over meanwhile may have removed it
			if taken := w.cfg.BeforeSave(); taken != nil {
				return taken
			}
		}
		return err
	}
	w.cfg.Log.Log(context.Background(), Notice, "saved a checkpoint", "file", w.cfg.Checkpoint, "step", w.global)
	return nil
}

// stepsPerEpoch says in a checkpoint how many global steps a pass over the data had: the run that resumes may
// have another number of workers, or another mode.
const stepsPerEpoch = "steps_per_epoch"

// identity is what must be equal in the run that resumes: with other settings the saved numbers would mean
// something else.
func (w *worker[F]) identity() []struct{ what, value string } {
	return []struct{ what, value string }{
		{"form", checkpointForm},
		{"model", w.cfg.Model},
		{"data", w.data.Name},
		{"hidden", strconv.Itoa(w.cfg.Hidden)},
		{"optimizer", string(w.plan.rule.Optimizer)},
		{"batch", strconv.Itoa(w.cfg.Batch)},
		{"seed", strconv.FormatUint(w.cfg.Seed, 10)}, // chooses rows, so it goes before them
		{"rows", w.data.rows()},
	}
}

// resume sets the chief's parameters and slots to the state to begin with, that of the checkpoint if there is one,
// and returns its step.
func (w *worker[F]) resume() (int64, error) {
	w.model.Init(w.params, w.cfg.Seed)
	for _, slot := range w.slots {
		clear(slot)
	}
	if w.cfg.Checkpoint == "" {
		return 0, nil
	}
	meta, tensors, err := readTensors(w.cfg.Checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		var damaged *DataError
		if errors.As(err, &damaged) {
			damaged.Detail += "; remove the file to begin anew"
		}
		return 0, err
	}
	bad := func(format string, args ...any) (int64, error) {
		return 0, badData(w.cfg.Checkpoint, 0, format, args...)
	}
	for _, id := range w.identity() {
		if meta[id.what] != id.value {
			return bad("the checkpoint has %s %q, this run %q; remove the file to begin anew", id.what, meta[id.what], id.value)
		}
	}
	step, err := strconv.ParseInt(meta["step"], 10, 64)
	if err != nil || step < 0 {
		return bad("step %q is no number from 0", meta["step"])
	}
	perEpoch, err := strconv.ParseInt(meta[stepsPerEpoch], 10, 64)
	if err != nil || perEpoch < 1 {
		return bad("%s %q is no number from 1", stepsPerEpoch, meta[stepsPerEpoch])
	}
	if largest := math.MaxInt64 / w.plan.perEpoch; perEpoch > largest || step/perEpoch >= largest {
		return bad("step %d of %d in each pass over the data is beyond any run's end", step, perEpoch)
	}
	step = w.plan.stepAfter(step, perEpoch)
	for _, v := range w.state() {
		if err := numbers(tensors, v.name, v.numbers); err != nil {
			return bad("%v", err)
		}
		if x, found := v.infinite(); found {
			return bad("a number of %s is %v: training had diverged; remove the file to begin anew", v.name, x)
		}
	}
	if step == 0 { // rounded down: the optimizer begins anew, since exchanges take its vectors for zero at step 0
		for _, slot := range w.slots {
			clear(slot)
		}
	}
	w.cfg.Log.Log(context.Background(), Notice, "resumed from a checkpoint", "file", w.cfg.Checkpoint, "step", step)
	return step, nil
}
