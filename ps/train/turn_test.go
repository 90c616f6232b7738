package train

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/fisterra-hpc/fisterra/ps"
)

// How workers that go at their own pace divide the rows among them.

// each is a data set, also its own test set, in which every row is the only one of its class: what is not trained on is not learned.
func each(t *testing.T, rows int) (path string) {
	t.Helper()
	var b bytes.Buffer
	for i := range rows {
		fmt.Fprintf(&b, "%d %d:1\n", i, i+1)
	}
	dir := t.TempDir()
	for _, name := range []string{"each", "each.t"} {
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "each")
}

// In Async mode a worker that is left alone trains on all rows: where the others are slow, or lost.
func TestAsyncWorkerAloneTrainsOnEveryRow(t *testing.T) {
	const last = 600
	cfg := Config{Cluster: ps.Counts(1, 3), Data: each(t, 30), Model: "softmax", Batch: 6, Stop: ps.Stop{LastStep: last}}
	for _, c := range []struct {
		name string
		lost []int
	}{{"slow", nil}, {"lost", []int{2, 3}}} {
		t.Run(c.name, func(t *testing.T) {
			alone := make(chan struct{})
			f := launch(t, cfg, func(rank int, f *fleet, cfg *Config) {
				switch {
				case rank == 1:
					cfg.Hooks = []Hook{{AfterStep: func(_ context.Context, _ Session, i StepInfo) error {
						if i.Step == last {
							close(alone)
						}
						return nil
					}}}
				case c.lost != nil:
					cfg.Hooks = []Hook{die(f, rank, 0)}
				default:
					cfg.Hooks = []Hook{{BeforeStep: func(ctx context.Context, _ Session) error { return closedBy(ctx, alone) }}}
				}
			})
			f.fine(t, c.lost...)
			if r := f.results[1]; r.TestAccuracy != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Workers that keep step train on every row once in each epoch, also where they take the shards in turn.
func TestTurns(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 7} {
		b := Batches{Workers: workers}
		for worker := range workers {
			mine := map[int]bool{}
			for epoch := range workers {
				mine[b.Turn(worker, epoch)] = true
			}
			if len(mine) != workers {
				t.Errorf("worker %d of %d: %d shards in as many epochs as workers", worker, workers, len(mine))
			}
		}
		for epoch := range 2 * workers {
			taken := map[int]bool{}
			for worker := range workers {
				taken[b.Turn(worker, epoch)] = true
			}
			if len(taken) != workers {
				t.Errorf("%d workers take %d shards in epoch %d", workers, len(taken), epoch)
			}
		}
	}
}
