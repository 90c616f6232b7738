package train

import "gonum.org/v1/gonum/blas"

// softmax is softmax (multinomial logistic) regression: scores = x.Wᵀ + b.
type softmax[F Float] struct {
	Shape
	scores []F
}

func newSoftmax[F Float](s Shape) *softmax[F] { return &softmax[F]{Shape: s} }

func (m *softmax[F]) Tensors() []Tensor {
	return layout(
		Tensor{Name: "output.weight", Shape: []int{m.Classes, m.Features}},
		Tensor{Name: "output.bias", Shape: []int{m.Classes}},
	)
}

// Init begins at zero: the loss is convex, so no symmetry needs breaking.
func (m *softmax[F]) Init(params []F, seed uint64) { clear(params) }

func (m *softmax[F]) split(params []F) (w matrix[F], b []F) {
	n := m.Classes * m.Features
	return matrix[F]{m.Classes, m.Features, params[:n]}, params[n : n+m.Classes]
}

func (m *softmax[F]) forward(params []F, x matrix[F]) matrix[F] {
	w, b := m.split(params)
	m.scores = grow(m.scores, x.rows*m.Classes)
	scores := matrix[F]{x.rows, m.Classes, m.scores}
	gemm(blas.NoTrans, blas.Trans, x, w, scores)
	addBias(scores, b)
	return scores
}

func (m *softmax[F]) Scores(params, x []F, rows int) []F {
	return m.forward(params, matrix[F]{rows, m.Features, x}).data
}

func (m *softmax[F]) Gradient(params, x []F, y []int32, grad []F) float64 {
	in := matrix[F]{len(y), m.Features, x}
	scores := m.forward(params, in)
	loss := crossEntropy(scores, y)
	gw, gb := m.split(grad)
	gemm(blas.Trans, blas.NoTrans, scores, in, gw)
	sumRows(scores, gb)
	return loss
}
