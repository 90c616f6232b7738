package ps

import "math"

// Float is the element type of tables.
type Float interface{ float32 | float64 }

// Optimizer names a rule that turns a gradient into a change of the values.
type Optimizer string

const (
	// SGD: v ← v − η·g.
	SGD Optimizer = "sgd"
	// Momentum: m ← µ·m + g, v ← v − η·m (B. Polyak, 1964).
	Momentum Optimizer = "momentum"
	// Adam: D. Kingma and J. Ba, 2015, algorithm 1.
	Adam Optimizer = "adam"
)

// Decay names how the learning rate falls over a run.
type Decay string

const (
	// Constant keeps the rate.
	Constant Decay = "constant"
	// Linear falls to Floor·Rate over Updates updates.
	Linear Decay = "linear"
	// Cosine falls to Floor·Rate along half a cosine (I. Loshchilov and F. Hutter, 2017).
	Cosine Decay = "cosine"
)

// Rule is an optimizer with its numbers. What changes over a run depends on the count of updates alone, so all
// servers, and a run that is resumed, compute the same.
type Rule struct {
	Optimizer Optimizer // SGD if empty
	Rate      float64   // learning rate η
	Decay     Decay     // Constant if empty
	Updates   int64     // over how many updates the rate falls
	Floor     float64   // the share of Rate that is left at the end, 0..1
	Warmup    int64     // over how many updates the rate rises from almost 0 at the start
	Momentum  float64   // µ of Momentum, 0.9 if zero
	Beta1     float64   // of Adam, 0.9 if zero
	Beta2     float64   // of Adam, 0.999 if zero
	Epsilon   float64   // of Adam, 1e-8 if zero
}

// WithDefaults fills in the numbers that are zero.
func (r Rule) WithDefaults() Rule {
	if r.Optimizer == "" {
		r.Optimizer = SGD
	}
	if r.Decay == "" {
		r.Decay = Constant
	}
	for _, f := range []struct {
		v   *float64
		def float64
	}{{&r.Momentum, 0.9}, {&r.Beta1, 0.9}, {&r.Beta2, 0.999}, {&r.Epsilon, 1e-8}} {
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	return r
}

// Validate says what cannot work. The error wraps ErrConfig.
func (r Rule) Validate() error {
	switch r.Optimizer {
	case SGD, Momentum, Adam:
	default:
		return configError("no optimizer %q; there are sgd, momentum and adam", r.Optimizer)
	}
	switch r.Decay {
	case Constant:
	case Linear, Cosine:
		if r.Updates < 1 {
			return configError("%s decay over %d updates; at least 1 is needed", r.Decay, r.Updates)
		}
	default:
		return configError("no decay %q; there are constant, linear and cosine", r.Decay)
	}
	if !(r.Rate > 0) || math.IsInf(r.Rate, 0) {
		return configError("learning rate %v; a positive number is needed", r.Rate)
	}
	for _, f := range []struct {
		name string
		v    float64
	}{{"momentum", r.Momentum}, {"beta1", r.Beta1}, {"beta2", r.Beta2}} {
		if !(f.v >= 0 && f.v < 1) {
			return configError("%s %v; it lies in [0, 1)", f.name, f.v)
		}
	}
	if !(r.Epsilon >= 0) || math.IsInf(r.Epsilon, 0) {
		return configError("epsilon %v; a number from 0 is needed", r.Epsilon)
	}
	if r.Warmup < 0 {
		return configError("warm-up of %d updates; a number from 0 is needed", r.Warmup)
	}
	if !(r.Floor >= 0 && r.Floor <= 1) {
		return configError("rate floor %v; it lies in [0, 1]", r.Floor)
	}
	return nil
}

// Slots is how many numbers the rule keeps beside each value.
func (r Rule) Slots() int {
	switch r.Optimizer {
	case Momentum:
		return 1
	case Adam:
		return 2
	}
	return 0
}

// RateAt is the learning rate of update n, counted from 0.
func (r Rule) RateAt(n int64) float64 {
	r = r.WithDefaults()
	rate := r.Rate
	if n < r.Warmup {
		rate *= float64(n+1) / float64(r.Warmup)
	}
	if r.Decay == Constant {
		return rate
	}
	done := min(1, float64(n)/float64(r.Updates))
	left := 1 - done
	if r.Decay == Cosine {
		left = (1 + math.Cos(math.Pi*done)) / 2
	}
	return rate * (r.Floor + (1-r.Floor)*left)
}

// Apply does update n (counted from 0) on values, in place. grad holds a sum of gradients, which is divided by
// weight; slots are r.Slots() vectors of the same length that belong to these values. Cost: one pass over memory.
func Apply[F Float](r Rule, n int64, values, grad []F, slots [][]F, weight float64) {
	r = r.WithDefaults()
	rate := r.RateAt(n)
	scale := F(1 / weight)
	grad = grad[:len(values)]
	switch r.Optimizer {
	case Momentum:
		mu, step := F(r.Momentum), F(rate)
		m := slots[0][:len(values)]
		for i, g := range grad {
			m[i] = mu*m[i] + g*scale
			values[i] -= step * m[i]
		}
	case Adam:
		b1, b2 := F(r.Beta1), F(r.Beta2)
		t := float64(n + 1)
		step := F(rate / (1 - math.Pow(r.Beta1, t)))
		unbias, eps := F(1/math.Sqrt(1-math.Pow(r.Beta2, t))), F(r.Epsilon)
		m, v := slots[0][:len(values)], slots[1][:len(values)]
		for i, g := range grad {
			g *= scale
			m[i] = b1*m[i] + (1-b1)*g
			v[i] = b2*v[i] + (1-b2)*g*g
			values[i] -= step * m[i] / (F(math.Sqrt(float64(v[i])))*unbias + eps)
		}
	default:
		step := F(rate) * scale
		for i, g := range grad {
			values[i] -= step * g
		}
	}
}
