//go:build !race

package need

// RaceDetector: these tests run under it. Arithmetic takes ten times as long then, and
// calls allocate that do not otherwise.
const RaceDetector = false
