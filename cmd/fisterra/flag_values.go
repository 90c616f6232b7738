package main

// Values that flags of several commands have alike: numbers of ranks, sizes in bytes, lists.

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fisterra-hpc/fisterra/mpi/launch"
)

// checkRanks refuses a number of ranks, of -n, that cannot be.
func checkRanks(n int) error {
	if n < 1 || n > launch.MaxRanks {
		return usageError(fmt.Errorf("-n %d: want 1 to %d ranks", n, launch.MaxRanks))
	}
	return nil
}

// parseSizes reads the value of --sizes.
func parseSizes(text string) ([]int, error) {
	words, err := commaList("--sizes", text)
	if err != nil {
		return nil, err
	}
	var sizes []int
	for _, w := range words {
		n, err := parseBytes(w)
		if err != nil {
			return nil, fmt.Errorf("--sizes %s: %w", text, err)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// parseBytes reads a size: a number, with K, M or G for powers of 1024.
func parseBytes(text string) (int, error) {
	digits, shift := text, 0
	if n := len(text); n > 0 {
		if i := strings.IndexByte("KMG", text[n-1]&^0x20); i >= 0 {
			digits, shift = text[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n > 1<<40>>shift {
		return 0, fmt.Errorf("%q is not a size in bytes (such as 4096, 64K, 4M)", text)
	}
	return n << shift, nil
}

// commaList splits a flag's value at commas. Empty parts are left out; a value of nothing else is an error.
func commaList(flag, text string) ([]string, error) {
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
	if len(parts) == 0 {
		return nil, fmt.Errorf("%s %q: want at least one value", flag, text)
	}
	return parts, nil
}
