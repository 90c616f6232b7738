package bench

import (
	"strings"
	"testing"
	"time"
)

func TestScaleChart(t *testing.T) {
	us := time.Microsecond
	for name, tc := range map[string]struct {
		points []ScalePoint
		want   string
	}{
		"none":    {nil, ""},
		"no time": {[]ScalePoint{{Ranks: 2}}, ""},
		"one time": {[]ScalePoint{{Ranks: 2, Bytes: 8, Simulated: 3 * us, Bound: 3 * us}}, `
# o simulated, | lower bound, * both
# ranks bytes
#     2     8  *
`},
		// 51 columns are three decades: one is 17.
		"decades": {[]ScalePoint{
			{Ranks: 16, Bytes: 8, Simulated: us, Bound: us},
			{Ranks: 4096, Bytes: 16777216, Simulated: 1000 * us, Bound: 100 * us},
			{Ranks: 16, Simulated: 10 * us, Bound: 0},
		}, `
# o simulated, | lower bound, * both
# ranks    bytes  1µs              10µs             100µs            1ms
#    16        8  *                :                :                :
#  4096 16777216  :                :                |                o
#    16        0  :                o                :                :
`},
		// A label that another reaches into is left out.
		"many decades": {[]ScalePoint{{Ranks: 2, Bytes: 8, Simulated: 1, Bound: 1e15}}, `
# o simulated, | lower bound, * both
# ranks bytes  1ns    100ns  10µs  1ms 10ms   1s 10s    16m40s 27h46m40s
#     2     8  o  :   :  :   :  :  :   :  :   :  :  :   :  :   :  |
`},
	} {
		var out strings.Builder
		if err := ScaleChart(&out, tc.points); err != nil || out.String() != strings.TrimPrefix(tc.want, "\n") {
			t.Errorf("%s: %v\n%s\nwant%s", name, err, out.String(), tc.want)
		}
	}
}
