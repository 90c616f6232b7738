// Package bench measures messages and collectives through the public
// interfaces of mpi and collective, with the operations, flags and output of
// the OSU micro-benchmarks where those have them. Every result is checked,
// byte by byte, before anything is timed.
//
// There are two ways of timing. With Options.Iterations a size is timed as
// OSU does: so many calls, the average of all. With Options.Budget it is timed
// in many short repetitions, of which the median and the 10th and 90th
// percentile are reported; this is how comparisons are made, since a median
// over short repetitions ignores what else the machine was doing.
//
// A collective is timed call by call. Messages are timed in batches, so that the
// clock is not part of what it measures; with Options.Tail every iteration of
// theirs is timed, too, and holds one reading of the clock (ClockMicroseconds).
package bench

import (
	"errors"
	"fmt"
	"time"
)

// Options say what is measured and how. The zero value of a field is its default.
type Options struct {
	Sizes      []int         // in bytes, ascending
	Iterations int           // calls per size, or windows of messages; 0: OSU's (OSUCalls), unless Budget is set
	Skip       int           // calls before timing; 0: OSU's (OSUCalls), with Budget those of the calibration; negative: none
	Budget     time.Duration // time per size, with the calibration and without Skip; Iterations is not used then
	Repetition time.Duration // how long one repetition lasts; 0: 3 ms, or less where so few would fill Budget
	Window     int           // messages in flight, 64 by default, at most MaxWindow
	Tail       bool          // take percentiles of single iterations, too: Row.Tail
	Check      Check
}

// Check says how often results are verified.
type Check int

const (
	CheckOnce  Check = iota // each size once, before timing
	CheckEvery              // and once more after it, as OSU's -c

	checked // not at all: the same sizes were checked before, on the same communicator
)

// Row is one measured size.
type Row struct {
	Op     string  `json:"op"`
	Bytes  int     `json:"bytes"`
	Ranks  int     `json:"ranks"`
	Median float64 `json:"median_us"` // of the repetitions; with Iterations, of the percentile samples
	P10    float64 `json:"p10_us"`
	P90    float64 `json:"p90_us"`
	Reps   int     `json:"reps"`

	// Average is over all calls and ranks; Least and Most are the averages of
	// the fastest and the slowest rank (point to point: of rank 0).
	Average    float64 `json:"avg_us"`
	Least      float64 `json:"min_us"`
	Most       float64 `json:"max_us"`
	Iterations int     `json:"iterations"`

	// Tail is nil without Options.Tail. It is of the first 1,048,576 iterations.
	Tail *Tail `json:"tail,omitempty"`
}

// MBps is the bandwidth of the row in 10⁶ B/s, for one message of its size
// in the row's time.
func (r Row) MBps() float64 { return float64(r.Bytes) / r.Average }

// Rate is the number of messages per second.
func (r Row) Rate() float64 { return 1e6 / r.Average }

// ErrWrong: a result was not what it must be.
var ErrWrong = errors.New("wrong result")

// MaxWindow bounds Options.Window: no program has so many messages under way, and a rank takes a peer for broken if some
// times as many large messages of that peer wait at it.
const MaxWindow = 1 << 20

// defaultWindow is OSU's.
const defaultWindow = 64

// ErrUsage: the operation or its options make no sense here.
var ErrUsage = errors.New("usage")

func usage(format string, args ...any) error {
	return fmt.Errorf("bench: %w: %s", ErrUsage, fmt.Sprintf(format, args...))
}
