package train

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas"
)

// perceptron has one hidden layer of rectified linear units:
// h = max(0, x.W₁ᵀ + b₁), scores = h.W₂ᵀ + b₂.
type perceptron[F Float] struct {
	Shape
	hidden, scores, back []F
}

func newPerceptron[F Float](s Shape) *perceptron[F] { return &perceptron[F]{Shape: s} }

func (m *perceptron[F]) Tensors() []Tensor {
	return layout(
		Tensor{Name: "hidden.weight", Shape: []int{m.Hidden, m.Features}},
		Tensor{Name: "hidden.bias", Shape: []int{m.Hidden}},
		Tensor{Name: "output.weight", Shape: []int{m.Classes, m.Hidden}},
		Tensor{Name: "output.bias", Shape: []int{m.Classes}},
	)
}

type perceptronParams[F Float] struct {
	w1 matrix[F]
	b1 []F
	w2 matrix[F]
	b2 []F
}

func (m *perceptron[F]) split(params []F) perceptronParams[F] {
	w1, rest := params[:m.Hidden*m.Features], params[m.Hidden*m.Features:]
	b1, rest := rest[:m.Hidden], rest[m.Hidden:]
	w2, rest := rest[:m.Classes*m.Hidden], rest[m.Classes*m.Hidden:]
	return perceptronParams[F]{
		matrix[F]{m.Hidden, m.Features, w1}, b1,
		matrix[F]{m.Classes, m.Hidden, w2}, rest[:m.Classes],
	}
}

// Init draws weights that keep the variance of activations (K. He et al.,
// Delving Deep into Rectifiers, 2015, section 2.2); biases begin at zero.
func (m *perceptron[F]) Init(params []F, seed uint64) {
	clear(params)
	rng := rand.New(rand.NewPCG(seed, 0x1417))
	p := m.split(params)
	uniform(p.w1.data, math.Sqrt(6/float64(m.Features)), rng)
	uniform(p.w2.data, math.Sqrt(3/float64(m.Hidden)), rng)
}

func (m *perceptron[F]) forward(p perceptronParams[F], x matrix[F]) (hidden, scores matrix[F]) {
	m.hidden = grow(m.hidden, x.rows*m.Hidden)
	m.scores = grow(m.scores, x.rows*m.Classes)
	hidden = matrix[F]{x.rows, m.Hidden, m.hidden}
	scores = matrix[F]{x.rows, m.Classes, m.scores}
	gemm(blas.NoTrans, blas.Trans, x, p.w1, hidden)
	addBias(hidden, p.b1)
	for i, v := range hidden.data {
		hidden.data[i] = max(v, 0)
	}
	gemm(blas.NoTrans, blas.Trans, hidden, p.w2, scores)
	addBias(scores, p.b2)
	return hidden, scores
}

func (m *perceptron[F]) Scores(params, x []F, rows int) []F {
	_, scores := m.forward(m.split(params), matrix[F]{rows, m.Features, x})
	return scores.data
}

func (m *perceptron[F]) Gradient(params, x []F, y []int32, grad []F) float64 {
	p, g := m.split(params), m.split(grad)
	in := matrix[F]{len(y), m.Features, x}
	hidden, scores := m.forward(p, in)
	loss := crossEntropy(scores, y)
	gemm(blas.Trans, blas.NoTrans, scores, hidden, g.w2)
	sumRows(scores, g.b2)
	m.back = grow(m.back, len(hidden.data))
	back := matrix[F]{hidden.rows, m.Hidden, m.back}
	gemm(blas.NoTrans, blas.NoTrans, scores, p.w2, back)
	for i, h := range hidden.data {
		if h == 0 {
			back.data[i] = 0
		}
	}
	gemm(blas.Trans, blas.NoTrans, back, in, g.w1)
	sumRows(back, g.b1)
	return loss
}
