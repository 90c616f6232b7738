//go:build !race

package train

const slowArithmetic = false
