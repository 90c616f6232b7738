package bench

import "testing"

// Sums are those of the elements, and exact in any order on as many ranks as there may be.
func TestSumsAreExact(t *testing.T) {
	for _, i := range []int{0, 1, 100, 101, 12345} {
		sum := 0
		for ranks := 1; ranks <= 1<<16; ranks++ {
			sum += int(element(ranks-1, i))
			if got := sumOver(ranks, i); int(got) != sum {
				t.Fatalf("element %d over %d ranks: %v, want %d", i, ranks, got, sum)
			}
		}
		if sum >= 1<<24 {
			t.Errorf("element %d: %d has no float32 of its own", i, sum)
		}
	}
}
