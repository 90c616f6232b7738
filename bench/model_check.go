package bench

import (
	"context"
	"fmt"
	"math"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// What a model has to achieve: its prices lie within predictionLimit of the measured times for
// predictionShare of the points, and the plan that it picks takes at most so much longer than the best.
const (
	predictionLimit = 0.30
	predictionShare = 0.90
	choiceLimit     = 0.15 // with two ranks
	choiceLimitMany = 0.25
)

// ModelCheck compares a model with measured times.
type ModelCheck struct {
	Ranks  int
	Points []Tuned
}

// CheckModel measures a model as MeasureModel does and every plan of the named collectives at every size as
// Tune does, by turns, so that what else the machine does meets both alike. The budget is that of both: the time for each plan at each
// size, and for each of the model's figures of messages. All ranks call it and get the same results. One rank alone is ErrUsage.
func CheckModel(ctx context.Context, c *mpi.Comm, name string, names []string, o Options) (*plan.Model, ModelCheck, error) {
	k := ModelCheck{Ranks: c.Size()}
	s, err := newSurvey(ctx, c, name, perPass(o.Budget, modelPasses+tunePasses), modelSizes)
	if err != nil {
		return nil, k, err
	}
	if err := s.pass(ctx, modelPasses); err != nil {
		return nil, k, err
	}
	m, err := s.model(ctx)
	if err != nil {
		return nil, k, err
	}
	points, err := newPoints(ctx, c, m, names, o.Sizes)
	if err != nil {
		return nil, k, err
	}
	s.passes = 0 // the least of more passes would be of quicker moments than the plans had
	if err := measurePoints(ctx, c, s.place, points, o, func() error { return s.pass(ctx, 1) }); err != nil {
		return nil, k, err
	}
	if err := s.end(); err != nil {
		return nil, k, err
	}
	if m, err = s.model(ctx); err != nil {
		return nil, k, err
	}
	for i := range points {
		if _, err := points[i].choose(c, m); err != nil {
			return nil, k, err
		}
	}
	k.Points, err = tuned(c, m, points)
	return m, k, err
}

// Ratio is the predicted time of the chosen plan to the measured one.
func (t Tuned) Ratio() float64 { return t.Predicted / t.Of(t.Chosen) }

// Loss is by how much longer the chosen plan takes than the best, as a fraction of the best plan's time.
func (t Tuned) Loss() float64 { return t.Of(t.Chosen)/t.Of(t.Best) - 1 }

// Predicted is the share of points whose price lies within 30 % of the measured time.
func (k ModelCheck) Predicted() float64 {
	return k.share(func(t Tuned) bool { return math.Abs(t.Ratio()-1) <= predictionLimit })
}

// Chosen is the share of points at which the plan that was picked is within the limit of the best.
func (k ModelCheck) Chosen() float64 {
	return k.share(func(t Tuned) bool { return t.Loss() <= k.ChoiceLimit() })
}

// ChoiceLimit is 0.15 with two ranks, 0.25 with more.
func (k ModelCheck) ChoiceLimit() float64 {
	if k.Ranks <= 2 {
		return choiceLimit
	}
	return choiceLimitMany
}

func (k ModelCheck) share(good func(Tuned) bool) float64 {
	if len(k.Points) == 0 {
		return 0
	}
	n := 0
	for _, t := range k.Points {
		if good(t) {
			n++
		}
	}
	return float64(n) / float64(len(k.Points))
}

// Worst is the point whose plan loses most against the best.
func (k ModelCheck) Worst() Tuned {
	var worst Tuned
	for i, t := range k.Points {
		if i == 0 || t.Loss() > worst.Loss() {
			worst = t
		}
	}
	return worst
}

// Good reports whether the model achieves what it has to.
func (k ModelCheck) Good() bool {
	// With more ranks than two, prices are compared with each other only.
	return k.Chosen() == 1 && (k.Ranks > 2 || k.Predicted() >= predictionShare)
}

// String is the two figures that sum a check up.
func (k ModelCheck) String() string {
	w := k.Worst()
	return fmt.Sprintf("predictions within %.0f %% of the measured time: %.0f %% of %d points (wanted with 2 ranks: %.0f %%)\n"+
		"chosen plans within %.0f %% of the best: %.0f %%; worst: %s of %d B by %s, %.0f %% longer than %s",
		100*predictionLimit, 100*k.Predicted(), len(k.Points), 100*predictionShare,
		100*k.ChoiceLimit(), 100*k.Chosen(), w.Op, w.Bytes, w.Chosen, 100*w.Loss(), w.Best)
}
