package train

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Tensor names a part of the flat parameter vector.
type Tensor struct {
	Name   string
	Shape  []int
	Offset int // elements
}

// Len is the number of elements.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Model is a classifier whose parameters are one flat vector that the caller
// owns, so that it can be a table of the parameter server. A Model keeps
// scratch memory and serves one goroutine at a time.
type Model[F Float] interface {
	// Tensors lists the parameters in their order, without gaps.
	Tensors() []Tensor
	// Init fills params with the values training begins with.
	Init(params []F, seed uint64)
	// Gradient overwrites grad with the gradient of the cross-entropy summed
	// over the rows of x (rows x features), and returns that sum.
	Gradient(params, x []F, y []int32, grad []F) float64
	// Scores returns rows x classes log-likelihoods up to a constant per row.
	// They are valid until the model is used again.
	Scores(params, x []F, rows int) []F
}

// Params is the length of the model's parameter vector.
func Params[F Float](m Model[F]) int {
	tensors := m.Tensors()
	last := tensors[len(tensors)-1]
	return last.Offset + last.Len()
}

// Shape is what decides a model's size.
type Shape struct {
	Features, Classes int
	Hidden            int // units of the hidden layer; mlp only
}

// NewModel makes the model of the given name: "softmax" is softmax
// regression, "mlp" a perceptron with one hidden layer of rectified units.
func NewModel[F Float](name string, s Shape) (Model[F], error) {
	if s.Features < 1 || s.Classes < 2 {
		return nil, fmt.Errorf("train: a model of %d features and %d classes; at least 1 and 2 are needed", s.Features, s.Classes)
	}
	switch name {
	case "softmax":
		return newSoftmax[F](s), nil
	case "mlp":
		if most := math.MaxInt/8/(s.Features+s.Classes+1) - 1; s.Hidden < 1 || s.Hidden > most {
			return nil, fmt.Errorf("train: %d hidden units; 1 to %d are possible with %d features and %d classes", s.Hidden, most, s.Features, s.Classes)
		}
		return newPerceptron[F](s), nil
	}
	return nil, fmt.Errorf("train: no model %q; there are softmax and mlp", name)
}

// layout lays tensors one after another.
func layout(tensors ...Tensor) []Tensor {
	at := 0
	for i := range tensors {
		tensors[i].Offset = at
		at += tensors[i].Len()
	}
	return tensors
}

// uniform fills w with numbers in ±limit.
func uniform[F Float](w []F, limit float64, rng *rand.Rand) {
	for i := range w {
		w[i] = F((2*rng.Float64() - 1) * limit)
	}
}

// addBias adds the vector b to every row of m.
func addBias[F Float](m matrix[F], b []F) {
	for r := range m.rows {
		row := m.data[r*m.cols : (r+1)*m.cols]
		for c := range row {
			row[c] += b[c]
		}
	}
}

// sumRows writes the sum of m's rows to dst.
func sumRows[F Float](m matrix[F], dst []F) {
	clear(dst)
	for r := range m.rows {
		row := m.data[r*m.cols : (r+1)*m.cols]
		for c := range row {
			dst[c] += row[c]
		}
	}
}

// crossEntropy turns scores into the derivative of the loss by them, in
// place, and returns the loss summed over the rows.
func crossEntropy[F Float](scores matrix[F], y []int32) float64 {
	var loss float64
	for r := range scores.rows {
		row := scores.data[r*scores.cols : (r+1)*scores.cols]
		top := row[0]
		for _, v := range row[1:] {
			top = max(top, v)
		}
		var sum float64
		target := float64(row[y[r]] - top)
		for c, v := range row {
			e := math.Exp(float64(v - top))
			sum += e
			row[c] = F(e)
		}
		loss += math.Log(sum) - target
		inverse := F(1 / sum)
		for c := range row {
			row[c] *= inverse
		}
		row[y[r]]--
	}
	return loss
}

// argmax is the class a row of scores speaks for: none, -1, if one of them is NaN.
func argmax[F Float](row []F) int32 {
	best := 0
	for c, v := range row {
		if v != v {
			return -1
		}
		if v > row[best] {
			best = c
		}
	}
	return int32(best)
}

// grow returns a slice of n elements, reusing s where it is large enough. The
// content is undefined.
func grow[F Float](s []F, n int) []F {
	if cap(s) < n {
		return make([]F, n)
	}
	return s[:n]
}

// evaluate is the mean cross-entropy of a split and the share of its rows
// that the model classifies rightly. It calls between after every few rows, and ends with an error of it.
func evaluate[F Float](m Model[F], params []F, s *Split, between func() error) (loss, accuracy float64, err error) {
	const chunk = 512
	var x []F
	right := 0
	for at := 0; at < s.Rows(); at += chunk {
		end := min(at+chunk, s.Rows())
		x = grow(x, (end-at)*s.Features)
		for i, v := range s.X[at*s.Features : end*s.Features] {
			x[i] = F(v)
		}
		scores := m.Scores(params, x, end-at)
		classes := len(scores) / (end - at)
		for i := range end - at {
			if argmax(scores[i*classes:(i+1)*classes]) == s.Y[at+i] {
				right++
			}
		}
		loss += crossEntropy(matrix[F]{end - at, classes, scores}, s.Y[at:end])
		if err := between(); err != nil {
			return 0, 0, err
		}
	}
	return loss / float64(s.Rows()), float64(right) / float64(s.Rows()), nil
}
