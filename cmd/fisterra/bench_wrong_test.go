package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/bench"
	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// wrongVariable has a process of this test binary be the rank of a measurement that is wrong, and says of which.
const wrongVariable = "FISTERRA_TEST_WRONG_RANK"

// wrongTime bounds what that rank does.
const wrongTime = 2 * time.Minute

// besideWrongRank runs a measurement, of which one rank of two is wrong.
func besideWrongRank(t *testing.T, wrong int, what string, args ...string) lab.Result {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`if [ $FISTERRA_RANK != %d ]; then exec "$@"; fi; exec "$0" -test.run='^TestWrongRank$' >&2`, wrong) // its PASS, too
	cmd := lab.Command(t.Context(), t, lab.Fisterra(t), append([]string{"run", "-n", "2", "--timeout", "150s", "--", "sh", "-c", script, self, lab.Fisterra(t)}, args...)...)
	cmd.Env = append(os.Environ(), wrongVariable+"="+what)
	return cmd.Run()
}

// A result that is not what it must be ends the job with the code for that, and what was printed is still whole.
func TestBenchEndsWithWrongResults(t *testing.T) {
	r := besideWrongRank(t, 1, "latency", words("bench latency --peer-timeout 1m --sizes 1000 -i 5 --format json")...)
	if r.Code != exitWrong || !strings.Contains(r.Stderr, "rank 0: wrong result: byte 0 of 1000 from rank 1 is 0x1, not 0xe") {
		t.Errorf("want exit code %d: %s", exitWrong, r)
	}
	var d struct {
		Title string      `json:"title"`
		Rows  []bench.Row `json:"rows"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil || d.Title == "" || len(d.Rows) != 0 {
		t.Errorf("%v: %s", err, r.Stdout)
	}
}

// So does one of a collective, also where it is measured for a model or a site: the ranks have met in shared memory by then.
func TestBenchEndsWithWrongCollectives(t *testing.T) {
	for what, args := range map[string]string{
		"allreduce": "bench allreduce --peer-timeout 1m --sizes 8 -i 5",
		"model":     "bench model --peer-timeout 1m --budget 6ms",
		"tune":      "bench tune --peer-timeout 1m --op allreduce --sizes 8 --budget 6ms",
	} {
		r := besideWrongRank(t, 0, what, words(args)...)
		if r.Code != exitWrong || !strings.Contains(r.Stderr, "rank 1: wrong result: ") {
			t.Errorf("%s: want exit code %d: %s", args, exitWrong, r)
		}
	}
}

// TestWrongRank is the rank that is wrong.
func TestWrongRank(t *testing.T) {
	what := os.Getenv(wrongVariable)
	if what == "" {
		t.Skip("a rank of other tests")
	}
	ctx, cancel := context.WithTimeout(context.Background(), wrongTime)
	defer cancel()
	env := system()
	env.stdout = env.stderr
	connect := connectFlags{transport: "auto", infiniband: "auto", collectives: "auto", start: wrongTime, peerTimeout: time.Minute}
	site := siteFlags{connectFlags: connect, ranks: 2, budget: 6 * time.Millisecond}
	b := &benchFlags{connectFlags: connect, ranks: 2, sizes: "8", iterations: 5, format: "osu"}
	var j *job
	switch what {
	case "latency":
		b.sizes, b.format = "1000", "json"
		j = b.wrongJob(t, env, what, parrot)
	case "allreduce":
		j = b.wrongJob(t, env, what, wrongAllreduce)
	case "model":
		flags := benchModelCommand(env).Flags()
		site.ops, site.sizes = flags.Lookup("op").DefValue, flags.Lookup("sizes").DefValue
		j = site.job(env, what, wrongModel)
	case "tune":
		site.ops, site.sizes = "allreduce", "8"
		j = site.job(env, what, wrongTune(site.budget))
	}
	if err := j.join(ctx); err != nil {
		t.Fatal(err)
	}
}

// wrongJob is the job that measures an operation, of a rank that does something else.
func (b *benchFlags) wrongJob(t *testing.T, env environment, name string, main func(context.Context, *mpi.World) error) *job {
	t.Helper()
	ops := bench.Operations()
	op := ops[slices.IndexFunc(ops, func(op bench.Operation) bool { return op.Name == name })]
	o, err := b.options(op, func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	return b.job(env, op, o, main)
}

// parrot answers every message with itself, where the other wants to hear something else.
func parrot(ctx context.Context, w *mpi.World) error {
	if err := collective.Barrier(ctx, w.Comm()); err != nil {
		return err
	}
	for c := w.Comm(); ; {
		s, err := c.Probe(ctx, 0, mpi.AnyTag)
		if err != nil {
			return nil // the other has had enough
		}
		heard := make([]byte, s.Bytes)
		if _, err := mpi.Recv(ctx, c, heard, 0, s.Tag); err != nil {
			return err
		}
		if err := mpi.Send(ctx, c, heard, 0, s.Tag); err != nil {
			return err
		}
	}
}

// meeting is how many barriers there are before a measurement looks at a result, so that it is one of shared memory where the
// ranks have that.
const meeting = 32

// barriers does some.
func barriers(ctx context.Context, c *mpi.Comm, n int) error {
	for range n {
		if err := collective.Barrier(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// A measurement of plans finds first where the processors are most of the time, by placeLooks looks, each of lookExchanges exchanges
// of a byte. There is one more before each figure, of which rank 0 says then whether it is of that place.
const (
	placeLooks    = 15
	lookExchanges = 15 * 100
	tagExchange   = 1000
	tagVerdict    = 1001
	isThere       = int64(0)
)

func looks(ctx context.Context, c *mpi.Comm, n int) error {
	var out, in [1]byte
	for range n * lookExchanges {
		if _, err := mpi.Sendrecv(ctx, c, out[:], 1, tagExchange, in[:], 1, tagExchange); err != nil {
			return err
		}
	}
	return nil
}

// inPlace is the look before a figure, of rank 0.
func inPlace(ctx context.Context, c *mpi.Comm) error {
	return errors.Join(looks(ctx, c, 1), mpi.Send(ctx, c, []int64{isThere}, 1, tagVerdict))
}

// left is the end of a wrong rank: when the other has seen what is wrong.
func left(ctx context.Context, c *mpi.Comm, err error) error {
	if err == nil {
		_ = collective.Barrier(ctx, c) // to which it does not come
	}
	return err
}

// wrongAllreduce adds something else to the first sum that is looked at.
func wrongAllreduce(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	if err := barriers(ctx, c, 1+meeting); err != nil {
		return err
	}
	return left(ctx, c, wrongSum(ctx, c))
}

func wrongSum(ctx context.Context, c *mpi.Comm) error {
	v := []float32{1000, 1000}
	return collective.Allreduce(ctx, c, v, make([]float32, len(v)), collective.Sum)
}

// wrongModel gives something else in the first message of a model.
func wrongModel(ctx context.Context, w *mpi.World) error {
	c := w.Comm()
	if err := looks(ctx, c, placeLooks); err != nil {
		return err
	}
	pair, err := c.Split(ctx, 0, c.Rank())
	if err != nil {
		return err
	}
	if err := errors.Join(barriers(ctx, pair, 2*meeting), barriers(ctx, c, meeting), inPlace(ctx, c)); err != nil {
		return err
	}
	f := collective.Config{Force: map[plan.Kind]string{plan.Bcast: "linear"}}
	if err := errors.Join(collective.Configure(pair, f), barriers(ctx, pair, meeting)); err != nil {
		return err
	}
	return left(ctx, pair, collective.Bcast(ctx, pair, []float32{1000}, 0))
}

// wrongTune measures a model, and adds something else to the first sum by the plan that is tried first.
func wrongTune(budget time.Duration) func(context.Context, *mpi.World) error {
	return func(ctx context.Context, w *mpi.World) error {
		c := w.Comm()
		m, err := bench.MeasureModel(ctx, c, "measured", budget)
		if err != nil {
			return err
		}
		if err := errors.Join(barriers(ctx, c, meeting), collective.Configure(c, collective.Config{Model: m, Library: collective.LibraryNever})); err != nil {
			return err
		}
		f := collective.ConfigOf(c)
		if e := collective.Explain(plan.Allreduce, 8, c); e.Candidates[0].Plan != e.Plan {
			f.Force = map[plan.Kind]string{plan.Allreduce: e.Candidates[0].Plan}
		}
		if err := errors.Join(looks(ctx, c, placeLooks), inPlace(ctx, c), collective.Configure(c, f), barriers(ctx, c, meeting)); err != nil {
			return err
		}
		return left(ctx, c, wrongSum(ctx, c))
	}
}
