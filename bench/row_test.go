package bench

import "testing"

// The quantiles of 0…n-1 are as far from both ends, as those of the peers' programs are.
func TestQuantilesMirror(t *testing.T) {
	for _, n := range []int{1, 2, 9, 10, 11, 20, 50, 99, 100, 1000} {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64((i + n/2) % n)
		}
		if low, high := Quantile(v, 0.1), Quantile(v, 0.9); low != float64(n/10) || high != float64(n-1-n/10) {
			t.Errorf("of %d: %v and %v, want %d and %d", n, low, high, n/10, n-1-n/10)
		}
	}
}
