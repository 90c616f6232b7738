package train

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/fisterra-hpc/fisterra/ps"
)

// Float is the element type of parameters and activations.
type Float = ps.Float

// matrix is a dense row-major view.
type matrix[F Float] struct {
	rows, cols int
	data       []F
}

// gemm computes c = a.b, where a and b may be read transposed.
func gemm[F Float](ta, tb blas.Transpose, a, b, c matrix[F]) {
	inner := a.cols
	if ta == blas.Trans {
		inner = a.rows
	}
	var impl gonum.Implementation
	switch cd := any(c.data).(type) {
	case []float64:
		impl.Dgemm(ta, tb, c.rows, c.cols, inner, 1, any(a.data).([]float64), a.cols, any(b.data).([]float64), b.cols, 0, cd, c.cols)
	case []float32:
		impl.Sgemm(ta, tb, c.rows, c.cols, inner, 1, any(a.data).([]float32), a.cols, any(b.data).([]float32), b.cols, 0, cd, c.cols)
	}
}
