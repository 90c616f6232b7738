//go:build race

package train

// Under the race detector arithmetic takes ten times as long, and has nothing
// in it to race.
const slowArithmetic = true
