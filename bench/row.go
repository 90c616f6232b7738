package bench

import "slices"

// rowOf makes a row from the samples of all ranks, taken in the same
// repetitions: each sample counts with its mean over the ranks.
func rowOf(op string, bytes, ranks int, all [][]float64, iterations int) Row {
	mean := make([]float64, len(all[0]))
	r := Row{Op: op, Bytes: bytes, Ranks: ranks, Reps: len(mean), Iterations: iterations}
	for i, samples := range all {
		own := average(samples)
		if i == 0 || own < r.Least {
			r.Least = own
		}
		r.Most = max(r.Most, own)
		for k, v := range samples {
			mean[k] += v / float64(len(all))
		}
	}
	r.Average = average(mean)
	r.Median, r.P10, r.P90 = Quantile(mean, 0.5), Quantile(mean, 0.1), Quantile(mean, 0.9)
	return r
}

func average(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// Quantile is the q-quantile of v by rank, 0 ≤ q ≤ 1. v is left as it is.
func Quantile(v []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(v))
	i := int(q * float64(len(s)))
	if q > 0.5 {
		i = len(s) - 1 - int((1-q)*float64(len(s))+1e-9) // in binary 1-0.9 is a little less than 0.1
	}
	return s[min(max(i, 0), len(s)-1)]
}
