package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/internal/testlog"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

// killAt makes a hook that kills its worker before the given of its steps.
func killAt(step int) Hook {
	n := 0
	return Hook{BeforeStep: func(context.Context, Session) error {
		if n++; n > step {
			return errDead
		}
		return nil
	}}
}

// die ends a worker without a word: no farewell as for an error of its own.
func die(f *fleet, rank, step int) Hook {
	n := 0
	return Hook{BeforeStep: func(context.Context, Session) error {
		if n++; n > step {
			f.fabric.Kill(rank)
			return errDead
		}
		return nil
	}}
}

func TestSyncAndCollectiveEndWhenAWorkerIsLost(t *testing.T) {
	for _, c := range []ps.Cluster{ps.Counts(1, 3), ps.Counts(0, 4)} {
		f := launch(t, Config{Cluster: c, Mode: ps.Sync, Epochs: 1000, Hidden: 16}, func(rank int, f *fleet, c *Config) {
			if rank == 2 {
				c.Hooks = []Hook{die(f, rank, 5)}
			}
		})
		for rank, err := range f.errs {
			if rank != 2 && (err == nil || !strings.Contains(err.Error(), "rank 2 on n2")) {
				t.Errorf("%d ps: rank %d says %v", len(c.Servers), rank, err)
			}
		}
	}
}

func TestAsyncFinishesWithoutALostWorker(t *testing.T) {
	out := t.TempDir()
	f := launch(t, Config{Cluster: ps.Counts(1, 3), Epochs: 6, Out: out}, func(rank int, f *fleet, c *Config) {
		if rank == 2 {
			c.Hooks = []Hook{die(f, rank, 5)}
		}
	})
	f.fine(t, 2)
	r := f.results[1]
	if !slices.Equal(r.Lost, []int{2}) || r.TestAccuracy < 0.9 {
		t.Errorf("%+v", r)
	}
	var object map[string]any
	if err := json.Unmarshal(r.JSON(), &object); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(object["lost"]); got != "[2]" {
		t.Errorf("lost is %s", got)
	}
}

// When the chief is lost the next worker evaluates and writes.
func TestAsyncChiefIsReplaced(t *testing.T) {
	out := t.TempDir()
	f := launch(t, Config{Cluster: ps.Counts(1, 3), Epochs: 6, Out: out}, func(rank int, f *fleet, c *Config) {
		if rank == 1 {
			c.Hooks = []Hook{die(f, rank, 5)}
		}
	})
	f.fine(t, 1)
	if r := f.results[2]; !r.Evaluated || !slices.Equal(r.Lost, []int{1}) || r.TestAccuracy < 0.9 {
		t.Errorf("%+v", r)
	}
	if r := f.results[3]; r.Evaluated {
		t.Error("two workers evaluate")
	}
	if _, err := os.Stat(filepath.Join(out, "model.safetensors")); err != nil {
		t.Error(err)
	}
}

// A successor of the chief knows with which step the run has begun, and says so in the result.
func TestSuccessorKnowsThatTheRunHasResumed(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Cluster: ps.Counts(1, 3), Hidden: 8, Stop: ps.Stop{LastStep: 200}, Checkpoint: filepath.Join(dir, "state"), CheckpointEvery: 50, Out: dir}
	saved := make(chan struct{})
	cfg.Hooks = []Hook{{
		BeforeStep: func(ctx context.Context, s Session) error {
			if s.Chief {
				return nil
			}
			return closedBy(ctx, saved)
		},
		AfterStep: func(_ context.Context, s Session, i StepInfo) error {
			if s.Chief && i.Step == 60 {
				close(saved)
			}
			return nil
		},
	}}
	launch(t, cfg, nil).fine(t)
	meta, _, err := readTensors(cfg.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Stop.LastStep, cfg.CheckpointEvery, cfg.Hooks = 400, 0, nil
	var created sync.WaitGroup
	created.Add(2)
	dead := make(chan struct{})
	f := launch(t, cfg, func(rank int, f *fleet, c *Config) {
		switch rank {
		case 1:
			c.Hooks = []Hook{{BeforeStep: func(context.Context, Session) error {
				created.Wait()
				f.fabric.Kill(rank)
				close(dead)
				return errDead
			}}}
		case 2, 3:
			c.Hooks = []Hook{{
				AfterCreate: func(context.Context, Session) error { created.Done(); return nil },
				BeforeStep:  func(ctx context.Context, _ Session) error { return closedBy(ctx, dead) },
			}}
		}
	})
	f.fine(t, 1)
	var written Result
	text, err := os.ReadFile(filepath.Join(dir, "result.json"))
	if err == nil {
		err = json.Unmarshal(text, &written)
	}
	if err != nil || !slices.Equal(written.Lost, []int{1}) || written.Resumed == 0 || fmt.Sprint(written.Resumed) != meta["step"] {
		t.Errorf("resumed at step %s; %v\n%s", meta["step"], err, text)
	}
}

// Also when training is over, and whose turn it is has yet to write: the next one does, once, and whom the network does not
// reach any more leaves that alone when it comes to write.
func TestAsyncChiefIsReplacedAtTheEnd(t *testing.T) {
	out := t.TempDir()
	f := launch(t, Config{Cluster: ps.Counts(1, 4), Hidden: 8, Stop: ps.Stop{LastStep: 50}, Out: out}, func(rank int, f *fleet, c *Config) {
		if rank == 1 || rank == 2 {
			c.Hooks = []Hook{{End: func(ctx context.Context, _ Session, _ error) {
				f.fabric.Kill(rank)
				_ = closedBy(ctx, f.ended[3]) // the test's end would show in what rank 3 returns
			}}}
		}
	})
	f.fine(t, 1, 2)
	if err := f.errs[1]; !errors.Is(err, mpi.ErrPeerLost) {
		t.Errorf("the chief, which had no ps any more, ended with %v", err)
	}
	if r := f.results[3]; !r.Evaluated || !slices.Equal(slices.Sorted(slices.Values(r.Lost)), []int{1, 2}) || r.Steps < 50 {
		t.Errorf("%+v", r)
	}
	if f.results[4].Evaluated {
		t.Error("two workers evaluate")
	}
	var written Result
	text, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err == nil {
		err = json.Unmarshal(text, &written)
	}
	if slices.Sort(written.Lost); err != nil || !slices.Equal(written.Lost, []int{1, 2}) {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err := os.Stat(filepath.Join(out, "model.safetensors")); err != nil {
		t.Error(err)
	}
}

// What was the end in the metrics, when whose turn it was is lost before the result is there, is replaced by its successor's.
func TestMetricsEndOnce(t *testing.T) {
	const last = 20
	out := t.TempDir()
	joined, there := make(chan struct{}), make(chan struct{})
	f := launch(t, Config{Cluster: ps.Counts(1, 2), Hidden: 8, Stop: ps.Stop{LastStep: last}, Out: out}, func(rank int, f *fleet, c *Config) {
		switch rank {
		case 1:
			trained, asked := false, 0
			c.Hooks = []Hook{{
				AfterCreate: func(ctx context.Context, _ Session) error { return closedBy(ctx, joined) },
				AfterStep: func(_ context.Context, _ Session, i StepInfo) error {
					if i.Step == last {
						close(there)
					}
					return nil
				},
				End: func(context.Context, Session, error) { trained = true },
			}}
			c.BeforeOutput = func() error {
				if trained {
					asked++
				}
				if asked == 2 { // before the result
					f.fabric.Kill(rank)
					return errDead
				}
				return nil
			}
		case 2: // makes the last step, and knows it
			c.Hooks = []Hook{{
				AfterCreate: func(context.Context, Session) error { close(joined); return nil },
				BeforeStep:  func(ctx context.Context, _ Session) error { return closedBy(ctx, there) },
			}}
		}
	})
	f.fine(t, 1)
	r := f.results[2]
	if !r.Evaluated || r.Steps != last+1 {
		t.Fatalf("%+v", r)
	}
	text, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if n := strings.Count(string(text), fmt.Sprintf(`"step":%d,`, last+1)); n != 1 || len(lines) < last {
		t.Errorf("%d lines, %d of them of the end:\n%s", len(lines), n, text)
	}
}

// Also a chief that fails by itself is replaced, when the others are at the end before it is gone.
func TestAsyncChiefThatFailsIsReplaced(t *testing.T) {
	created := make(chan struct{})
	f := launch(t, Config{Cluster: ps.Counts(1, 2), Hidden: 8, Stop: ps.Stop{LastStep: 50}}, func(rank int, _ *fleet, c *Config) {
		switch rank {
		case 1:
			c.Hooks = []Hook{{AfterCreate: func(context.Context, Session) error {
				close(created)
				return errors.New("not my day")
			}}}
		case 2: // would else be at the end before the chief begins
			c.Hooks = []Hook{{Begin: func(ctx context.Context, _ Session) error { return closedBy(ctx, created) }}}
		}
	})
	f.fine(t, 1)
	if r := f.results[2]; !r.Evaluated {
		t.Errorf("%+v", r)
	}
}

// The successor of a lost chief saves like it, and not only at the end.
func TestSuccessorOfTheChiefSaves(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	interrupt := make(chan struct{})
	reports := 0
	f := launch(t, Config{Cluster: ps.Counts(1, 3), Hidden: 8, Epochs: 1_000_000, EvaluateEvery: 50, Checkpoint: file, CheckpointEvery: 20}, func(rank int, f *fleet, c *Config) {
		switch rank {
		case 1:
			c.Hooks = []Hook{die(f, rank, 5)}
		case 2:
			saves := 0
			c.BeforeSave = func() error {
				if saves++; saves == 5 {
					close(interrupt)
				}
				return nil
			}
			c.Interrupt = interrupt
			c.Report = func(Metric) { reports++ }
		}
	})
	f.fine(t, 1)
	r := f.results[2]
	if !r.Evaluated || !r.Interrupted || reports < 2 {
		t.Errorf("%+v, %d reports", r, reports)
	}
	if f.results[3].Evaluated {
		t.Error("two workers evaluate")
	}
	if meta, _, err := readTensors(file); err != nil || meta["step"] != fmt.Sprint(r.Steps) {
		t.Errorf("saved at the end: %v, %v, want step %d", meta, err, r.Steps)
	}
}

// A successor of the chief saves and evaluates what the run came to, also when the data set is not there any more.
func TestSuccessorOfTheChiefDoesWithoutTheFile(t *testing.T) {
	dir := t.TempDir()
	file, data := filepath.Join(dir, "state"), filepath.Join(dir, "rows.csv")
	var rows strings.Builder
	for i := range 400 {
		fmt.Fprintf(&rows, "%d,%d,%s\n", i%7, i%2, []string{"even", "odd"}[i%2])
	}
	if err := os.WriteFile(data, []byte(rows.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	interrupt := make(chan struct{})
	f := launch(t, Config{Cluster: ps.Counts(1, 2), Data: data, Hidden: 8, Epochs: 1_000_000, Checkpoint: file}, func(rank int, f *fleet, c *Config) {
		switch rank {
		case 1:
			c.Hooks = []Hook{die(f, rank, 5)}
		case 2:
			c.Interrupt = interrupt
			gone := false
			c.Hooks = []Hook{{AfterStep: func(context.Context, Session, StepInfo) error {
				if !gone && len(c.Comm.Lost()) > 0 {
					gone = true
					close(interrupt)
					return os.Remove(data)
				}
				return nil
			}}}
		}
	})
	f.fine(t, 1)
	if r := f.results[2]; !r.Evaluated || !r.Interrupted || r.TestAccuracy == 0 {
		t.Errorf("without the data set's file: %+v", r)
	}
	if _, _, err := readTensors(file); err != nil {
		t.Error(err)
	}
}

// A file is claimed when all ranks can begin, by the chief, and one that cannot be
// claimed ends the run.
func TestClaim(t *testing.T) {
	for _, c := range []ps.Cluster{ps.Counts(1, 2), ps.Counts(0, 3)} {
		for what, wrong := range map[string]int{"well": -1, "data of a worker": c.Workers[1], "the claim": c.Workers[0]} {
			claims := make([]int, 3)
			refused := errors.New("it is another's")
			f := launch(t, Config{Cluster: c, Mode: ps.Sync, Hidden: 8, Epochs: 1, Checkpoint: filepath.Join(t.TempDir(), "state")}, func(rank int, f *fleet, c *Config) {
				c.Claim = func(resume func() error) error {
					claims[rank]++
					if rank == wrong {
						return refused
					}
					return errors.Join(resume(), resume())
				}
				if rank == wrong && what == "data of a worker" {
					c.Data = "missing.csv"
				}
			})
			want := make([]int, 3)
			switch what {
			case "well":
				f.fine(t)
				want[c.Workers[0]] = 1
			case "the claim":
				want[wrong] = 1
				if !errors.Is(f.errs[wrong], refused) {
					t.Errorf("%d ps: the chief says %v", len(c.Servers), f.errs[wrong])
				}
			}
			for rank, err := range f.errs {
				if what != "well" && err == nil {
					t.Errorf("%d ps, %s: rank %d ended well", len(c.Servers), what, rank)
				}
			}
			if !slices.Equal(claims, want) {
				t.Errorf("%d ps, %s: claimed %v times, want %v", len(c.Servers), what, claims, want)
			}
		}
	}
}

// Who has taken the file over is the reason, whatever writing says.
func TestSaveNamesWhoTookOver(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	taken := errors.New("taken over")
	f := launch(t, Config{Cluster: ps.Counts(0, 1), Hidden: 8, Epochs: 1, Checkpoint: filepath.Join(dir, "state"), CheckpointEvery: 10}, func(rank int, f *fleet, c *Config) {
		asked := 0
		c.BeforeSave = func() error {
			if asked++; asked == 1 {
				return os.Remove(dir)
			}
			return taken
		}
	})
	if err := f.errs[0]; !errors.Is(err, taken) {
		t.Error(err)
	}
}

func TestWorkersOwnErrorIsTold(t *testing.T) {
	for _, c := range []ps.Cluster{ps.Counts(1, 2), ps.Counts(0, 3)} {
		f := launch(t, Config{Cluster: c, Mode: ps.Sync, Epochs: 1000, Hidden: 16}, func(rank int, f *fleet, c *Config) {
			if rank == 2 {
				c.Hooks = []Hook{killAt(5)}
			}
		})
		for rank, err := range f.errs {
			if err == nil || rank == 2 != errors.Is(err, errDead) {
				t.Errorf("%d ps: rank %d says %v", len(c.Servers), rank, err)
			}
		}
	}
}

// A rank that cannot begin keeps nobody waiting.
func TestNobodyWaitsForARankThatCannotBegin(t *testing.T) {
	for _, c := range []ps.Cluster{ps.Counts(1, 2), ps.Counts(0, 3)} {
		for _, wrong := range []int{c.Workers[0], c.Workers[1]} {
			for what, spoil := range map[string]func(c *Config){
				"missing.csv":  func(c *Config) { c.Data = "missing.csv" },
				"needs a file": func(c *Config) { c.CheckpointEvery = 5 },
			} {
				f := launch(t, Config{Cluster: c, Mode: ps.Sync, Hidden: 8, Epochs: 1000}, func(rank int, f *fleet, c *Config) {
					if rank == wrong {
						spoil(c)
					}
				})
				for rank, err := range f.errs {
					// One that had waited in vain would say so.
					if err == nil || rank == wrong != strings.Contains(err.Error(), what) || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%d ps, rank %d wrong (%s): rank %d says %v", len(c.Servers), wrong, what, rank, err)
					}
				}
			}
		}
	}
}

// A worker that keeps the others waiting has told them what it is about.
func TestStallReportSaysWhatAWorkerDoes(t *testing.T) {
	var log testlog.Buffer
	launch(t, Config{Cluster: ps.Counts(0, 2), Mode: ps.Sync, Hidden: 16, Stop: ps.Stop{LastStep: 2}}, func(rank int, _ *fleet, c *Config) {
		f := collective.Config{StallAfter: 1200 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := collective.Configure(c.Comm, f); err != nil {
			t.Error(err)
		}
		if rank == 1 {
			c.Hooks = []Hook{{BeforeStep: func(ctx context.Context, _ Session) error {
				return log.Await(ctx, func(text string) bool { return strings.Contains(text, "last seen in the hooks before a step") })
			}}}
		}
	}).fine(t)
}

// A chief that takes too long to read its data is named, with the time that it has for it.
func TestServerSaysWhatItWaitedForAtTheStart(t *testing.T) {
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Run(context.Background(), Config{Comm: worlds[0].Comm(), Cluster: ps.Counts(1, 1), Deadline: 10 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "chief (rank 1 on ") || !strings.Contains(err.Error(), "within 10ms") {
		t.Errorf("%v", err)
	}
}
