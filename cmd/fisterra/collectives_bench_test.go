package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

// BenchmarkMPIAllreduceBesideC runs fisterra bench allreduce over the system's MPI library, by Fisterra's own plans, and a C program with
// MPI_Allreduce over the same library, by turns. It reports for each size the ratio of the medians over the launches.
func BenchmarkMPIAllreduceBesideC(b *testing.B) {
	const launches = 5
	sizes := []string{"8", "4096", "65536", "1048576", "4194304", "67108864"}
	for _, l := range lab.Launchers() {
		b.Run(l.Part, func(b *testing.B) {
			l.Needed(b)
			program := l.PeerProgram(b, "collectives.c")
			// mean is the time that a program prints in some column of the row that begins so, in microseconds.
			mean := func(column int, row []string, program string, args ...string) float64 {
				r := l.Command(b.Context(), b, 2, program, args...).Run()
				for line := range strings.Lines(r.Stdout) {
					var t float64
					f := strings.Fields(line)
					if len(f) <= column || !slices.Equal(f[:len(row)], row) {
						continue
					}
					if _, err := fmt.Sscan(f[column], &t); err == nil {
						return t
					}
				}
				b.Fatalf("no row %v: %v", row, r)
				return 0
			}
			for b.Loop() {
				for _, n := range sizes {
					var ours, theirs []float64
					for range launches {
						ours = append(ours, mean(1, []string{n}, lab.Fisterra(b), words("bench allreduce --transport mpi --collectives fisterra --sizes", n)...))
						theirs = append(theirs, mean(3, []string{"allreduce", n}, program, words("allreduce --thread serialized --sizes", n)...))
					}
					slices.Sort(ours)
					slices.Sort(theirs)
					own, c := ours[launches/2], theirs[launches/2]
					b.Logf("%9s B: %10.2f µs (%.2f to %.2f), C %10.2f µs (%.2f to %.2f), ratio %.2f", n, own, ours[0], ours[launches-1], c, theirs[0], theirs[launches-1], own/c)
					b.ReportMetric(own/c, "xC/"+n+"B")
				}
			}
		})
	}
}
