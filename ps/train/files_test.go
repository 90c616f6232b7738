package train

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/testlog"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

func TestCheckpointAndResume(t *testing.T) {
	for _, c := range []ps.Cluster{ps.Counts(2, 3), ps.Counts(0, 2)} {
		for _, o := range []ps.Optimizer{ps.Momentum, ps.Adam} {
			cfg := Config{Cluster: c, Mode: ps.Sync, Hidden: 32, Epochs: 2, Rule: ps.Rule{Optimizer: o}, Seed: 3}
			model := func(out string) string {
				_, tensors, err := readTensors(filepath.Join(out, "model.safetensors"))
				if err != nil {
					t.Fatal(err)
				}
				return string(tensors["hidden.weight"].bytes) + string(tensors["output.bias"].bytes)
			}
			cfg.Out = t.TempDir()
			launch(t, cfg, nil).fine(t)
			whole := model(cfg.Out)

			cfg.Out, cfg.Checkpoint = t.TempDir(), filepath.Join(t.TempDir(), "state")
			interrupt := make(chan struct{})
			told := c.Workers[len(c.Workers)-1] // not the chief
			f := launch(t, cfg, func(rank int, f *fleet, c *Config) {
				c.Interrupt = nil
				if rank == told {
					c.Interrupt = interrupt
					c.Hooks = []Hook{{AfterStep: func(_ context.Context, s Session, i StepInfo) error {
						if i.Step == 60 {
							close(interrupt)
						}
						return nil
					}}}
				}
			})
			f.fine(t)
			chief := c.Workers[0]
			if r := f.results[chief]; !r.Interrupted || r.Steps < 61 || r.Steps > 62 {
				t.Fatalf("interrupted after step 60: %+v", r)
			}
			f = launch(t, cfg, nil)
			f.fine(t)
			if r := f.results[chief]; r.Interrupted || r.Resumed < 61 || r.Steps != 2*79 && r.Steps != 2*80 {
				t.Errorf("resumed: %+v", r)
			}
			if model(cfg.Out) != whole {
				t.Errorf("%d ps, %s: the resumed run's model differs from the whole run's", len(c.Servers), o)
			}
			cfg.Seed++
			f = launch(t, cfg, nil)
			if err := f.errs[chief]; err == nil || !strings.Contains(err.Error(), `seed "3", this run "4"`) {
				t.Errorf("another seed: %v", err)
			}
		}
	}
}

func TestCheckpointOnDemandAndByItself(t *testing.T) {
	dir := t.TempDir()
	save := make(chan struct{}, 1)
	var steps []string
	file := filepath.Join(dir, "state")
	f := launch(t, Config{Cluster: ps.Counts(1, 2), Mode: ps.Sync, Hidden: 8, Stop: ps.Stop{LastStep: 50}, Checkpoint: file, CheckpointEvery: 20}, func(rank int, f *fleet, c *Config) {
		if rank != 1 {
			return
		}
		c.Save = save
		c.Hooks = []Hook{{BeforeStep: func(_ context.Context, s Session) error {
			if s.Step == 30 {
				save <- struct{}{}
			}
			if meta, _, err := readTensors(file); err == nil && (len(steps) == 0 || steps[len(steps)-1] != meta["step"]) {
				steps = append(steps, meta["step"])
			}
			return nil
		}}}
	})
	f.fine(t)
	if got := strings.Join(steps, " "); got != "20 31" {
		t.Errorf("checkpoints at %q, want 20 and, as asked, 31", got)
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Who asks a run to save that has nowhere to save is told.
func TestNowhereToSave(t *testing.T) {
	save := make(chan struct{}, 1)
	save <- struct{}{}
	log := new(testlog.Buffer)
	launch(t, Config{Cluster: ps.Counts(0, 1), Hidden: 8, Stop: ps.Stop{LastStep: 3}, Save: save, Log: slog.New(slog.NewTextHandler(log, nil))}, nil).fine(t)
	if n := strings.Count(log.String(), "asked to save, but the run has no checkpoint"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, log)
	}
}

// A checkpoint that is none any more says what is to be done.
func TestDamagedCheckpoint(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "state"), []byte("\x02\x00\x00"))
	err := launch(t, Config{Cluster: ps.Counts(0, 1), Hidden: 8, Checkpoint: file}, nil).errs[0]
	if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), file+": header length: unexpected EOF; remove the file to begin anew") {
		t.Error(err)
	}
}

// Training that diverges leaves the last good checkpoint alone, and one that is not good begins no run.
func TestDivergedStateIsNotSaved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	cfg := Config{Cluster: ps.Counts(0, 1), Mode: ps.Sync, Hidden: 8, Rule: ps.Rule{Optimizer: ps.Momentum, Rate: 0.01}, Stop: ps.Stop{LastStep: 2},
		Checkpoint: file, CheckpointEvery: 1}
	launch(t, cfg, nil).fine(t)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Rule.Rate, cfg.Stop.LastStep = 1e300, 10
	if err := launch(t, cfg, nil).errs[0]; err == nil || !strings.Contains(err.Error(), "training diverged") {
		t.Errorf("the run that diverges ends with %v", err)
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, good) {
		t.Errorf("the checkpoint is another: %v", err)
	}

	for _, name := range []string{"params", "slot1"} {
		meta, tensors, err := readTensors(file)
		if err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint32(tensors[name].bytes[8:], math.Float32bits(float32(math.NaN())))
		cfg.Checkpoint = filepath.Join(t.TempDir(), "state")
		if err := writeTensors(cfg.Checkpoint, meta, slices.Collect(maps.Values(tensors))); err != nil {
			t.Fatal(err)
		}
		err = launch(t, cfg, nil).errs[0]
		if !errors.Is(err, ErrData) || !strings.Contains(err.Error(), cfg.Checkpoint) || !strings.Contains(err.Error(), name+" is NaN") {
			t.Errorf("a checkpoint with NaN among its %s: %v", name, err)
		}
	}
}

func TestOutputFiles(t *testing.T) {
	out := filepath.Join(t.TempDir(), "a", "b")
	f := launch(t, Config{Cluster: ps.Counts(1, 3), Mode: ps.Sync, Epochs: 3, Out: out, Transport: "sim"}, nil)
	f.fine(t)
	r := f.results[1]
	raw, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) < 80 || len(lines) > 130 {
		t.Errorf("%d metrics", len(lines))
	}
	evaluated := 0
	for i, line := range lines {
		var m Metric
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&m); err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
		if m.Accuracy != nil {
			evaluated++
		}
	}
	if evaluated != 4 {
		t.Errorf("%d evaluations, want one per epoch and the last", evaluated)
	}
	svg, err := os.Open(filepath.Join(out, "curve.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer svg.Close()
	paths := 0
	for d := xml.NewDecoder(svg); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("curve.svg: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" {
			paths++
		}
	}
	if paths < 4 {
		t.Errorf("%d paths in the curve", paths)
	}
	// The model file alone gives the accuracy that the result claims.
	meta, tensors, err := readTensors(filepath.Join(out, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	m, _ := NewModel[float32](meta["model"], Shape{Features: 64, Classes: 10, Hidden: DefaultHidden})
	params := make([]float32, Params(m))
	for _, x := range m.Tensors() {
		if err := numbers(tensors, x.Name, params[x.Offset:x.Offset+x.Len()]); err != nil {
			t.Fatal(err)
		}
	}
	d, _ := Open(Optdigits, 0)
	if _, accuracy := measured(m, params, &d.Test); accuracy != r.TestAccuracy {
		t.Errorf("the model file reaches %v, the result says %v", accuracy, r.TestAccuracy)
	}
	var object map[string]any
	if err := json.Unmarshal(r.JSON(), &object); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"schema", "data", "model", "mode", "ranks", "ps", "workers", "epochs", "steps", "test_accuracy", "train_loss", "seconds", "samples_per_second", "transport", "lost"} {
		if _, ok := object[key]; !ok {
			t.Errorf("the result lacks %q", key)
		}
		delete(object, key)
	}
	if len(object) > 0 {
		t.Errorf("the result has also %v", object)
	}
}

// A run that another has taken the place of writes nothing more where that one writes, and leaves its metrics alone.
func TestOutputBelongsToTheSuccessor(t *testing.T) {
	taken := errors.New("taken over")
	for _, c := range []struct {
		when    string
		atEnd   bool
		step    int64 // the run has a successor when it has made so many
		metrics int
	}{{"before it begins", false, 0, 0}, {"while it trains", false, 30, 29}, {"at its end", true, 50, 50}} {
		out := t.TempDir()
		f := launch(t, Config{Cluster: ps.Counts(0, 1), Hidden: 8, Stop: ps.Stop{LastStep: 50}, Out: out}, func(_ int, _ *fleet, cfg *Config) {
			step, ended := int64(0), false
			cfg.Hooks = []Hook{{
				AfterStep: func(_ context.Context, _ Session, i StepInfo) error { step = i.Step; return nil },
				End:       func(context.Context, Session, error) { ended = true },
			}}
			cfg.BeforeOutput = func() error {
				if step >= c.step && ended == c.atEnd {
					return taken
				}
				return nil
			}
		})
		if !errors.Is(f.errs[0], taken) {
			t.Errorf("%s: the run ended with %v", c.when, f.errs[0])
		}
		files, err := filepath.Glob(filepath.Join(out, "*"))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
		if got := strings.Count(string(text), "\n"); got != c.metrics || len(files) > min(c.metrics, 1) {
			t.Errorf("%s: %d metrics in %q, want %d and no other file", c.when, got, files, c.metrics)
		}
	}
}

// Nor does it report anything more where nothing is written.
func TestReportBelongsToTheSuccessor(t *testing.T) {
	taken := errors.New("taken over")
	for _, c := range []struct {
		when    string
		atEnd   bool
		step    int64 // the run has a successor when it has made so many
		reports int
	}{{"while it trains", false, 30, 29}, {"at its end", true, 50, 50}} {
		reports := 0
		f := launch(t, Config{Cluster: ps.Counts(0, 1), Hidden: 8, Stop: ps.Stop{LastStep: 50}}, func(_ int, _ *fleet, cfg *Config) {
			step, ended := int64(0), false
			cfg.Hooks = []Hook{{
				AfterStep: func(_ context.Context, _ Session, i StepInfo) error { step = i.Step; return nil },
				End:       func(context.Context, Session, error) { ended = true },
			}}
			cfg.Report = func(Metric) { reports++ }
			cfg.BeforeOutput = func() error {
				if step >= c.step && ended == c.atEnd {
					return taken
				}
				return nil
			}
		})
		if !errors.Is(f.errs[0], taken) || reports != c.reports {
			t.Errorf("%s: %d reports, want %d; the run ended with %v", c.when, reports, c.reports, f.errs[0])
		}
	}
}

func FuzzTensors(f *testing.F) {
	file := filepath.Join(f.TempDir(), "x")
	if err := writeTensors(file, map[string]string{"a": "b"}, []namedTensor{tensor("t", []float32{1, 2}, 2, 1), tensor("u", []float64{3})}); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:20])
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, tensors, err := parseTensors(strings.NewReader(string(b)), int64(len(b)))
		if err != nil {
			return
		}
		for name, x := range tensors {
			n := int(dtypeBytes(x.dtype))
			for _, d := range x.shape {
				n *= d
			}
			if n != len(x.bytes) {
				t.Fatalf("%q of shape %v has %d bytes", name, x.shape, len(x.bytes))
			}
		}
	})
}

// Few or strange metrics still make a picture.
func TestCurveOfFewMetrics(t *testing.T) {
	half := 0.5
	for _, metrics := range [][]Metric{
		nil,
		{{Epoch: 1, Loss: 2, Accuracy: &half}},
		{{Epoch: 1, Loss: 2}, {Epoch: 2, Loss: 2}},
		{{Epoch: 1, Loss: 0}, {Epoch: 1, Loss: math.Inf(1), Accuracy: &half}, {Epoch: 2, Loss: math.NaN(), Accuracy: &half}},
		{{Epoch: 1, Loss: 1e-300}, {Epoch: 2, Loss: 1e300}},
	} {
		var b strings.Builder
		if err := drawCurve(&b, "a title", metrics); err != nil || !strings.Contains(b.String(), "</svg>") {
			t.Errorf("%+v: %v", metrics, err)
		}
	}
}

// A run whose hundredth part takes long reports meanwhile.
func TestLongRunReports(t *testing.T) {
	interrupt := make(chan struct{})
	var first *Metric
	f := launch(t, Config{
		Cluster: ps.Counts(0, 1), Hidden: 8, Batch: 1, Epochs: 1_000_000, EvaluateEvery: math.MaxInt64, Interrupt: interrupt,
		Report: func(m Metric) {
			if first == nil {
				first = &m
				close(interrupt)
			}
		},
	}, nil)
	f.fine(t)
	if r := f.results[0]; !r.Interrupted || first.Step >= first.Steps/100 {
		t.Errorf("the first report was %+v; %+v", first, r)
	}
}

// A run that resumes after its machine went down amid a line of the metrics loses that line, and nothing after it.
func TestMetricsGoOnAfterABrokenLine(t *testing.T) {
	dir := t.TempDir()
	for i, torn := range []string{"", `{"step":`, "{\"step\":\x00\x00\n", `{"step":99}`, ""} {
		o, err := newOutput(dir, float64(i))
		if err == nil {
			err = errors.Join(o.metric(Metric{Step: int64(i), Epoch: float64(i)}), o.metrics.Close())
		}
		if err != nil || len(o.seen) != i+1 || o.seen[i].Step != int64(i) {
			t.Fatalf("resumed %d times: %v, %+v", i, err, o.seen)
		}
		f, err := os.OpenFile(o.path("metrics.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(torn)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// Metrics that cannot be read are not cut off where the reading failed.
func TestMetricsThatCannotBeRead(t *testing.T) {
	f, err := os.Open("/proc/self/mem") // of which nothing can be read at 0
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o := output{metrics: f}
	if err := o.recall(func(Metric) bool { return true }); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v, want %v", err, syscall.EIO)
	}
}

// A run that resumes with another number of workers, or in another mode, goes on after as many passes over the data.
func TestResumeWithOtherWorkers(t *testing.T) {
	kinds := []struct {
		mode    ps.Mode
		workers int
		each    int64 // global steps of a joint batch
	}{{ps.Async, 4, 4}, {ps.Async, 2, 2}, {ps.Sync, 3, 1}}
	for _, before := range kinds {
		state := filepath.Join(t.TempDir(), "state")
		cfg := Config{Cluster: ps.Counts(1, before.workers), Mode: before.mode, Hidden: 8, Checkpoint: state, CheckpointEvery: before.each,
			StartBarrier: true, Stop: ps.Stop{LastStep: 50 * before.each}}
		launch(t, cfg, nil).fine(t)
		meta, _, err := readTensors(state)
		if err != nil {
			t.Fatal(err)
		}
		saved, err := strconv.ParseInt(meta["step"], 10, 64)
		if err != nil || saved < before.each {
			t.Fatalf("saved at step %d: %v", saved, err)
		}
		for _, after := range kinds {
			cfg.Cluster, cfg.Mode, cfg.CheckpointEvery, cfg.Stop = ps.Counts(1, after.workers), after.mode, 0, ps.Stop{LastStep: 60 * after.each}
			f := launch(t, cfg, nil)
			f.fine(t)
			r, want := f.results[1], saved/before.each*after.each
			if before.mode == after.mode && before.workers == after.workers {
				want = saved
			}
			if r.Resumed != want || r.Steps < 60*after.each {
				t.Errorf("%v after step %d of %v: resumed at %d, want %d; %d steps", after, saved, before, r.Resumed, want, r.Steps)
			}
		}
	}
}

// Other data of the same name are no data to go on with, however alike: one row has another class, or one feature another
// scale.
func TestOtherRowsDoNotResume(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	for i, k := range []struct{ class, largest int }{{1, 9}, {1, 9}, {0, 9}, {1, 10}} {
		file := filepath.Join(t.TempDir(), "rows.csv")
		var rows strings.Builder
		for r := range 100 {
			fmt.Fprintf(&rows, "%d,1.5,%d\n", r%9, r%2)
		}
		fmt.Fprintf(&rows, "%d,1.5,%d\n", k.largest, k.class)
		if err := os.WriteFile(file, []byte(rows.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file+".t", []byte("1,1.5,0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f := launch(t, Config{Cluster: ps.Counts(1, 1), Model: "softmax", Data: file, Batch: 10, Checkpoint: state, CheckpointEvery: 5, Stop: ps.Stop{LastStep: int64(10 * (i + 1))}}, nil)
		switch err := f.errs[1]; {
		case i < 2:
			f.fine(t)
		case err == nil || !strings.Contains(err.Error(), `the checkpoint has rows "101, CRC-32 `):
			t.Errorf("with class %d, up to %d: %v", k.class, k.largest, err)
		}
	}
}

// A file may have any name: the run that resumes knows its data again, and the curve is XML.
func TestNameThatIsNoText(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "d\xe9"), []byte("1,0\n2,1\n"))
	write(t, filepath.Join(dir, "d\xe9.t"), []byte("1,0\n"))
	cfg := Config{Cluster: ps.Counts(0, 1), Model: "softmax", Data: filepath.Join(dir, "d\xe9"), Batch: 2,
		Out: filepath.Join(dir, "out"), Checkpoint: filepath.Join(dir, "state"), CheckpointEvery: 1, Stop: ps.Stop{LastStep: 2}}
	launch(t, cfg, nil).fine(t)
	cfg.Stop.LastStep = 4
	f := launch(t, cfg, nil)
	f.fine(t)
	if r := f.results[0]; r.Resumed != 2 {
		t.Errorf("resumed at step %d, want 2", r.Resumed)
	}
	svg, err := os.ReadFile(filepath.Join(cfg.Out, "curve.svg"))
	if err == nil {
		err = xml.Unmarshal(svg, new(struct{}))
	}
	if err != nil {
		t.Errorf("curve.svg: %v", err)
	}
}

// A checkpoint of so few steps that the run which goes on counts none of them has no use for what the optimizer kept:
// exchanges take all ranks' to be zero at step 0.
func TestResumeRoundedToTheBeginning(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	cfg := Config{Cluster: ps.Counts(1, 4), Mode: ps.Async, Hidden: 8, Checkpoint: state, CheckpointEvery: 1, StartBarrier: true, Stop: ps.Stop{LastStep: 2}}
	launch(t, cfg, nil).fine(t)
	meta, tensors, err := readTensors(state)
	if err != nil {
		t.Fatal(err)
	}
	moved := false
	for name, x := range tensors {
		moved = moved || strings.HasPrefix(name, "slot") && slices.ContainsFunc(x.bytes, func(b byte) bool { return b != 0 })
	}
	if !moved {
		t.Fatalf("nothing in the optimizer's vectors of step %s", meta["step"])
	}
	meta["step"] = "1" // of an asynchronous run, which may have made some more than it was to
	if err := writeTensors(state, meta, slices.Collect(maps.Values(tensors))); err != nil {
		t.Fatal(err)
	}
	worlds, err := mpi.Local(2, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Cluster, cfg.Mode, cfg.Comm = ps.Counts(0, 2), ps.Sync, worlds[0].Comm()
	cfg = cfg.withDefaults()
	data, err := Open(cfg.Data, cfg.Seed)
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorker[float32](t.Context(), &cfg, data)
	if err != nil {
		t.Fatal(err)
	}
	step, err := w.resume()
	if err != nil || step != 0 {
		t.Fatalf("step %d, %v", step, err)
	}
	for _, slot := range w.slots {
		if slices.ContainsFunc(slot, func(x float32) bool { return x != 0 }) {
			t.Error("the chief's optimizer does not begin anew, unlike the other ranks'")
		}
	}
	if err := w.free(); err != nil {
		t.Error(err)
	}
}

// Steps in a pass depend on the workers: what is left over after whole batches makes one more only where it
// has a row for each. A run that goes on with others goes on after as many passes.
func TestStepAfterOtherPasses(t *testing.T) {
	of := func(mode ps.Mode, workers int) plan {
		p, err := (&Config{Cluster: ps.Counts(1, workers), Mode: mode, Batch: 48, Epochs: 30, Rule: ps.Rule{Rate: 0.1}}).plan(3823)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		mode          ps.Mode
		before, after int // workers
		step, want    int64
	}{
		{ps.Sync, 16, 16, 805, 805},
		{ps.Sync, 16, 32, 800, 790}, // ten passes of 80 steps, and of 79
		{ps.Sync, 32, 16, 790, 800},
		{ps.Sync, 16, 32, 840, 790 + 39},
		{ps.Sync, 32, 16, 0, 0},
		{ps.Async, 4, 2, 10*80*4 + 7, 10*80*2 + 2},
		{ps.Async, 4, 32, 10 * 80 * 4, 10 * 79 * 32},
		{ps.Async, 32, 32, 12345, 12345},
	} {
		if got := of(c.mode, c.after).stepAfter(c.step, of(c.mode, c.before).perEpoch); got != c.want {
			t.Errorf("%s, step %d of %d workers: %d of %d workers, want %d", c.mode, c.step, c.before, got, c.after, c.want)
		}
	}
	async, sync := of(ps.Async, 4), of(ps.Sync, 32)
	if got := sync.stepAfter(3*async.perEpoch, async.perEpoch); got != 3*79 {
		t.Errorf("three passes of four asynchronous workers: step %d", got)
	}
}

// A run that ends some steps after each worker joined may begin anywhere, after a resume too: its rate rises, and stays.
func TestRateOfARunWithoutAKnownEnd(t *testing.T) {
	of := func(mode ps.Mode, stop ps.Stop, rule ps.Rule) (plan, error) {
		cfg := Config{Cluster: ps.Counts(1, 4), Mode: mode, Stop: stop, Rule: rule}.withDefaults()
		return cfg.plan(3823)
	}
	for _, mode := range []ps.Mode{ps.Async, ps.Sync} {
		p, err := of(mode, ps.Stop{NumSteps: 1000}, ps.Rule{Rate: 0.1})
		if err != nil || p.rule.Warmup != 100 {
			t.Errorf("%s: %+v %v", mode, p.rule, err)
		}
		for _, n := range []int64{100, 999, 1000, 5000} {
			if rate := p.rule.RateAt(n); rate != 0.1 {
				t.Errorf("%s: rate %v at update %d, want 0.1", mode, rate, n)
			}
		}
		p, err = of(mode, ps.Stop{NumSteps: 1000}, ps.Rule{Rate: 0.1, Updates: 2000})
		if err != nil || p.rule.Decay != ps.Linear || p.rule.Updates != 2000 {
			t.Errorf("%s, over 2000 updates: %+v %v", mode, p.rule, err)
		}
		if _, err = of(mode, ps.Stop{NumSteps: 1000}, ps.Rule{Rate: 0.1, Decay: ps.Cosine}); err == nil || !strings.Contains(err.Error(), "over how many updates") {
			t.Errorf("%s: a rate that falls, nobody knows till when: %v", mode, err)
		}
		if p, err = of(mode, ps.Stop{LastStep: 1000}, ps.Rule{Rate: 0.1}); err != nil || p.rule.Decay != ps.Linear || p.rule.Updates != 1000 {
			t.Errorf("%s, to step 1000: %+v %v", mode, p.rule, err)
		}
	}
}

// What a run did after it had saved, before it was killed, is done again, and stands in the metrics once.
func TestMetricsAfterTheCheckpointGo(t *testing.T) {
	dir := t.TempDir()
	first, err := newOutput(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	for epoch := range 5 {
		err = errors.Join(err, first.metric(Metric{Step: int64(10 * epoch), Epoch: float64(epoch)}))
	}
	second, err2 := newOutput(dir, 2.5)
	if err := errors.Join(err, err2, second.metric(Metric{Step: 30, Epoch: 3}), second.metrics.Close(), first.metrics.Close()); err != nil {
		t.Fatal(err)
	}
	third, err := newOutput(dir, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer third.metrics.Close()
	var steps []int64
	for _, m := range third.seen {
		steps = append(steps, m.Step)
	}
	if !slices.Equal(steps, []int64{0, 10, 20, 30}) {
		t.Errorf("steps %v", steps)
	}
}
