package train

// When workers have trained enough, or are told to stop, and what the run says of it.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/mpitest"
	"github.com/fisterra-hpc/fisterra/ps"
)

// All workers of a synchronous run join at one step, also where steps need some of them only: they reach their own numbers
// of steps together, and nobody is left to make steps alone.
func TestBackupWorkersJoinTogether(t *testing.T) {
	mpitest.InBubble(t, func(t *testing.T) {
		const deadline = 100 * time.Millisecond
		f := launch(t, Config{Cluster: ps.Counts(1, 3), Mode: ps.Sync, Aggregate: 2, Hidden: 8, Stop: ps.Stop{NumSteps: 10}, Deadline: deadline}, func(rank int, _ *fleet, c *Config) {
			if rank == 3 {
				c.Hooks = []Hook{{Begin: func(context.Context, Session) error {
					<-time.After(deadline / 2) // of the bubble: the others have gone as far as they can
					return nil
				}}}
			}
		})
		f.fine(t)
		for rank, r := range f.results {
			if r.Steps != 10 {
				t.Errorf("rank %d ends at step %d", rank, r.Steps)
			}
		}
	})
}

// joinLate is a run of two workers on their own numbers of steps, of which the second joins when the first, the chief, has
// made half of its own, and makes the first step when the chief has made the last. after, if given, is called after each of
// the second's steps.
func joinLate(t *testing.T, cfg Config, after func(step int64)) *fleet {
	t.Helper()
	half, there, whole := make(chan struct{}), make(chan struct{}), make(chan struct{})
	cfg.Cluster, cfg.Hidden, cfg.Stop = ps.Counts(1, 2), 4, ps.Stop{NumSteps: 20}
	f := launch(t, cfg, func(rank int, _ *fleet, c *Config) {
		switch rank {
		case 1:
			c.Hooks = []Hook{{AfterStep: func(ctx context.Context, _ Session, i StepInfo) error {
				switch i.Step {
				case 10:
					close(half)
					return closedBy(ctx, there)
				case 20:
					close(whole)
				}
				return nil
			}}}
		case 2:
			c.Hooks = []Hook{{
				Begin:       func(ctx context.Context, _ Session) error { return closedBy(ctx, half) },
				AfterCreate: func(context.Context, Session) error { close(there); return nil },
				BeforeStep:  func(ctx context.Context, _ Session) error { return closedBy(ctx, whole) },
				AfterStep: func(_ context.Context, _ Session, i StepInfo) error {
					if after != nil {
						after(i.Step)
					}
					return nil
				},
			}}
		}
	})
	f.fine(t)
	return f
}

// closedBy is a hook's wait for c to be closed.
func closedBy(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// What the chief evaluates and saves is of the run's last step, also where its own was an earlier one.
func TestFinalStepIsTheRuns(t *testing.T) {
	out := t.TempDir()
	f := joinLate(t, Config{Out: out}, nil)
	want := f.results[0].Server.GlobalStep
	if got := f.results[1].Steps; want != 30 || got != want {
		t.Errorf("the chief says step %d, the server %d", got, want)
	}
	text, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	var result Result
	if err := json.Unmarshal(text, &result); err != nil || result.Steps != want {
		t.Errorf("result.json says step %d, %v; want %d", result.Steps, err, want)
	}
}

// A wish to stop that comes with the last step stops nothing.
func TestInterruptAtTheEnd(t *testing.T) {
	interrupt := make(chan struct{})
	f := launch(t, Config{Cluster: ps.Counts(1, 1), Mode: ps.Async, Hidden: 4, Stop: ps.Stop{NumSteps: 20}, Interrupt: interrupt}, func(rank int, _ *fleet, c *Config) {
		if rank == 1 {
			c.Hooks = []Hook{{AfterStep: func(_ context.Context, _ Session, i StepInfo) error {
				if i.Step == 19 {
					close(interrupt)
				}
				return nil
			}}}
		}
	})
	f.fine(t)
	if r := f.results[1]; r.Interrupted || r.Steps != 20 {
		t.Errorf("%+v", r)
	}
}

// Nor does one that a worker hears of before its last step, when another makes that one. All say the same of it.
func TestInterruptBeforeTheEnd(t *testing.T) {
	const last = 50
	file := filepath.Join(t.TempDir(), "state")
	near, asked, interrupt := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f := launch(t, Config{Cluster: ps.Counts(1, 2), Mode: ps.Async, Hidden: 4, Stop: ps.Stop{LastStep: last}, Checkpoint: file}, func(rank int, _ *fleet, c *Config) {
		switch rank {
		case 1: // makes all steps but one
			c.Hooks = []Hook{{BeforeStep: func(ctx context.Context, s Session) error {
				if s.Step < last-2 {
					return nil
				}
				close(near)
				return closedBy(ctx, asked)
			}}}
		case 2:
			c.Interrupt = interrupt
			c.Hooks = []Hook{{
				BeforeStep: func(ctx context.Context, _ Session) error {
					close(interrupt)
					return closedBy(ctx, near)
				},
				AfterStep: func(_ context.Context, _ Session, i StepInfo) error {
					close(asked)
					if i.Step != last-1 {
						return fmt.Errorf("step %d, want %d", i.Step, last-1)
					}
					return nil
				},
			}}
		}
	})
	f.fine(t)
	for rank, r := range f.results[1:] {
		if r.Interrupted {
			t.Errorf("worker %d says that the run was interrupted: %+v", rank, r)
		}
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a run that is over is saved: %v", err)
	}
}

// A run that is interrupted when the chief has made its steps, but a late joiner has not, is saved.
func TestInterruptOfALateJoinerIsSaved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	interrupt := make(chan struct{})
	asked := false
	f := joinLate(t, Config{Checkpoint: file, Interrupt: interrupt}, func(step int64) {
		if step >= 25 && !asked {
			asked = true
			close(interrupt)
		}
	})
	r := f.results[1]
	if !r.Interrupted {
		t.Errorf("%+v", r)
	}
	if meta, _, err := readTensors(file); err != nil || meta["step"] != fmt.Sprint(f.results[0].Server.GlobalStep) {
		t.Errorf("saved %v, %v; want step %d", meta, err, f.results[0].Server.GlobalStep)
	}
}
