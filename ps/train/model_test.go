package train

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/ps"
)

func TestShareSpreadsTheRemainder(t *testing.T) {
	for _, c := range []struct {
		total, parts int
		want         []int
	}{
		{50, 3, []int{17, 17, 16}},
		{48, 3, []int{16, 16, 16}},
		{2, 3, []int{1, 1, 0}},
		{7, 1, []int{7}},
	} {
		at := 0
		for i, want := range c.want {
			begin, end := Share(c.total, c.parts, i)
			if begin != at || end-begin != want {
				t.Errorf("part %d of %d/%d is [%d, %d), want %d from %d", i, c.total, c.parts, begin, end, want, at)
			}
			at = end
		}
		if at != c.total {
			t.Errorf("%d/%d adds up to %d", c.total, c.parts, at)
		}
	}
}

// Every row is trained on exactly once per epoch, whatever the sizes.
func TestBatchesCoverEveryRowOnce(t *testing.T) {
	for _, b := range []Batches{
		{Rows: 3823, Batch: 50, Workers: 3, Seed: 1},
		{Rows: 100, Batch: 7, Workers: 7, Seed: 2},
		{Rows: 101, Batch: 100, Workers: 4, Seed: 3},
		{Rows: 5, Batch: 50, Workers: 5, Seed: 4},
		{Rows: 64, Batch: 8, Workers: 1, Seed: 5},
		{Rows: 53, Batch: 50, Workers: 3, Seed: 6},
		{Rows: 52, Batch: 50, Workers: 3, Seed: 7},
	} {
		if err := b.Validate(); err != nil {
			t.Fatal(err)
		}
		for epoch := range 2 {
			seen := make([]int, b.Rows)
			for step := range b.Steps() {
				joint := 0
				for w := range b.Workers {
					shard := b.Shard(w)
					order := b.Order(w, epoch, len(shard))
					begin, end := b.Bounds(w, step)
					for _, p := range order[begin:end] {
						seen[shard[p]]++
					}
					if end <= begin {
						t.Errorf("%+v step %d: nothing for worker %d", b, step, w)
					}
					joint += end - begin
				}
				if step < b.Steps()-1 && joint != b.Batch || joint >= b.Batch+b.Workers {
					t.Errorf("%+v step %d: joint batch of %d", b, step, joint)
				}
			}
			for row, n := range seen {
				if n != 1 {
					t.Fatalf("%+v epoch %d: row %d used %d times", b, epoch, row, n)
				}
			}
		}
		first, second := b.Order(0, 0, 50), b.Order(0, 1, 50)
		if slices.Equal(first, second) {
			t.Errorf("%+v: both epochs have the same order", b)
		}
		if !slices.Equal(first, b.Order(0, 0, 50)) {
			t.Errorf("%+v: the order of an epoch changes", b)
		}
	}
}

func TestBatchesRefuse(t *testing.T) {
	for _, b := range []Batches{{10, 0, 1, 1}, {10, 5, 0, 1}, {10, 2, 3, 1}, {2, 5, 3, 1}} {
		if b.Validate() == nil {
			t.Errorf("%+v is accepted", b)
		}
	}
}

// A file with too few rows for the workers is named, with the flag that says how many workers there are.
func TestFewerRowsThanWorkers(t *testing.T) {
	c := Config{Data: "few.csv", Batch: 8, Cluster: ps.Cluster{Workers: []int{0, 1, 2}}}
	_, err := c.plan(2)
	var bad *DataError
	if !errors.As(err, &bad) || bad.File != "few.csv" || !errors.Is(err, ErrData) || !strings.Contains(err.Error(), "2 rows") || !strings.Contains(err.Error(), "3 workers (--workers)") {
		t.Errorf("%v", err)
	}
}

// Steps or parameters that an int cannot count are refused: the number would come round, to a shorter run or a smaller vector.
func TestNumbersBeyondCounting(t *testing.T) {
	c := Config{Batch: 8, Cluster: ps.Counts(0, 1), Rule: ps.Rule{Rate: 1}, Epochs: 1<<62 + 1}
	if p, err := c.plan(32); err == nil || !strings.Contains(err.Error(), "4611686018427387905 epochs of 4 steps") {
		t.Errorf("the run ends %v: %v", p.stop, err)
	}
	c.Epochs = math.MaxInt64 / 4
	if p, err := c.plan(32); err != nil || p.stop.LastStep != math.MaxInt64-3 {
		t.Errorf("the run ends %v: %v", p.stop, err)
	}
	s := Shape{Features: 64, Classes: 10, Hidden: math.MaxUint64/75 + 1}
	if _, err := NewModel[float32]("mlp", s); err == nil || !strings.Contains(err.Error(), "245956587649460689 hidden units; 1 to") {
		t.Error(err)
	}
	s.Hidden = math.MaxInt/8/75 - 1
	m, err := NewModel[float64]("mlp", s)
	if err != nil {
		t.Fatal(err)
	}
	if n := Params(m); n < s.Hidden*75 || n > math.MaxInt/8 {
		t.Errorf("%d parameters", n)
	}
}

// A row so far from those trained on that its scores are no numbers is not classified rightly, whatever its class.
func TestRowsWithoutScores(t *testing.T) {
	m, err := NewModel[float32]("softmax", Shape{Features: 2, Classes: 2})
	if err != nil {
		t.Fatal(err)
	}
	inf := float32(math.Inf(1))
	s := Split{Features: 2, X: []float32{inf, 0, 0, inf, 1, 0}, Y: []int32{0, 1, 0}}
	if _, accuracy := measured(m, []float32{1, 1, 0, 0, 0, 0}, &s); accuracy != 1.0/3 {
		t.Errorf("accuracy %v, want that of one row of three", accuracy)
	}
}

// The analytic gradient against central differences, in float64.
func TestGradients(t *testing.T) {
	const rows = 6
	shape := Shape{Features: 5, Classes: 4, Hidden: 7}
	for _, name := range []string{"softmax", "mlp"} {
		rng := rand.New(rand.NewPCG(11, 12))
		m, err := NewModel[float64](name, shape)
		if err != nil {
			t.Fatal(err)
		}
		params := make([]float64, Params(m))
		m.Init(params, 3)
		for i := range params {
			params[i] += rng.NormFloat64() / 3
		}
		x := make([]float64, rows*shape.Features)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		y := make([]int32, rows)
		for i := range y {
			y[i] = int32(rng.IntN(shape.Classes))
		}
		grad, scratch := make([]float64, len(params)), make([]float64, len(params))
		m.Gradient(params, x, y, grad)
		const h = 1e-6
		for i := range params {
			keep := params[i]
			params[i] = keep + h
			up := m.Gradient(params, x, y, scratch)
			params[i] = keep - h
			down := m.Gradient(params, x, y, scratch)
			params[i] = keep
			want := (up - down) / (2 * h)
			if math.Abs(grad[i]-want) > 1e-6*max(1, math.Abs(want)) {
				t.Errorf("%s: derivative by parameter %d is %g, differences say %g", name, i, grad[i], want)
			}
		}
	}
}

func TestTensorsFillTheVector(t *testing.T) {
	m, err := NewModel[float32]("mlp", Shape{Features: 64, Classes: 10, Hidden: 256})
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, tensor := range m.Tensors() {
		if tensor.Offset != at {
			t.Errorf("%s begins at %d, want %d", tensor.Name, tensor.Offset, at)
		}
		at += tensor.Len()
	}
	if at != 64*256+256+256*10+10 || at != Params(m) {
		t.Errorf("%d parameters, Params says %d", at, Params(m))
	}
	for _, bad := range []string{"", "cnn"} {
		if _, err := NewModel[float32](bad, Shape{Features: 1, Classes: 2}); err == nil {
			t.Errorf("model %q is accepted", bad)
		}
	}
}

// serial trains in one loop, without messages: what every distributed run
// is compared with. visit, if given, sees the parameters after each update.
func serial[F Float](t testing.TB, d *Dataset, model string, hidden, workers, batch, epochs int, rule ps.Rule, seed uint64, visit func(update int64, params []F)) []F {
	t.Helper()
	m, err := NewModel[F](model, Shape{Features: d.Train.Features, Classes: len(d.Labels), Hidden: hidden})
	if err != nil {
		t.Fatal(err)
	}
	n := Params(m)
	params, grad := make([]F, n), make([]F, n)
	m.Init(params, seed)
	b := Batches{Rows: d.Train.Rows(), Batch: batch, Workers: workers, Seed: seed}
	rule = rule.WithDefaults()
	if rule.Updates == 0 {
		rule.Updates = int64(epochs * b.Steps())
		rule.Warmup = int64(warmup * float64(rule.Updates))
	}
	slots := make([][]F, rule.Slots())
	for i := range slots {
		slots[i] = make([]F, n)
	}
	shards := make([]Split, workers)
	for w := range shards {
		shards[w] = d.Train.Select(b.Shard(w))
	}
	var update int64
	for epoch := range epochs {
		orders := make([][]int, workers)
		for w := range orders {
			orders[w] = b.Order(w, epoch, shards[w].Rows())
		}
		for step := range b.Steps() {
			var x []F
			var y []int32
			for w := range workers {
				begin, end := b.Bounds(w, step)
				for _, p := range orders[w][begin:end] {
					for _, v := range shards[w].Row(p) {
						x = append(x, F(v))
					}
					y = append(y, shards[w].Y[p])
				}
			}
			m.Gradient(params, x, y, grad)
			ps.Apply(rule, update, params, grad, slots, float64(len(y)))
			update++
			if visit != nil {
				visit(update, params)
			}
		}
	}
	return params
}

// The accuracy the data set is known for, over five seeds.
func TestSerialAccuracy(t *testing.T) {
	d, err := Open(Optdigits, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		model        string
		rate         float64
		median, each float64
	}{
		{"softmax", DefaultRate("softmax", ps.Momentum), 0.935, 0.93},
		{"mlp", DefaultRate("mlp", ps.Momentum), 0.965, 0.96},
	} {
		if need.RaceDetector && c.model == "mlp" {
			continue
		}
		var got []float64
		for seed := uint64(1); seed <= 5; seed++ {
			params := serial[float32](t, d, c.model, DefaultHidden, 1, DefaultBatch, DefaultEpochs,
				ps.Rule{Optimizer: ps.Momentum, Rate: c.rate, Decay: ps.Linear}, seed, nil)
			m, _ := NewModel[float32](c.model, Shape{Features: 64, Classes: 10, Hidden: DefaultHidden})
			_, accuracy := measured(m, params, &d.Test)
			got = append(got, accuracy)
		}
		t.Logf("%s, seeds 1 to 5: %.4f", c.model, got)
		slices.Sort(got)
		if got[2] < c.median || got[0] < c.each {
			t.Errorf("%s: %.4f; the median must reach %.3f and each %.3f", c.model, got, c.median, c.each)
		}
	}
}

// measured is evaluate without anything between.
func measured[F Float](m Model[F], params []F, s *Split) (loss, accuracy float64) {
	loss, accuracy, _ = evaluate(m, params, s, func() error { return nil })
	return loss, accuracy
}

func TestLearnsAdult(t *testing.T) {
	d, err := Open("testdata/a9a.zst", 1)
	if err != nil {
		t.Fatal(err)
	}
	params := serial[float32](t, d, "softmax", 0, 1, DefaultBatch, 10, ps.Rule{Optimizer: ps.Adam, Rate: 0.01, Decay: ps.Linear}, 1, nil)
	m, _ := NewModel[float32]("softmax", Shape{Features: d.Train.Features, Classes: 2})
	loss, accuracy := measured(m, params, &d.Test)
	t.Logf("loss %.4f accuracy %.4f", loss, accuracy)
	if accuracy < 0.83 {
		t.Errorf("accuracy %.4f; a linear classifier reaches about 0.85 on the whole set", accuracy)
	}
}
