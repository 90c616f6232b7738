package slurm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// steps groups the captured tasks by the step they belong to.
func steps(t *testing.T) map[string][]*Job {
	t.Helper()
	all := make(map[string][]*Job)
	for _, row := range rankRows(t) {
		if j, err := FromEnv(lookupIn(readEnv(t, row.file()))); err == nil {
			key := fmt.Sprintf("%s job %d step %s restart %d", row.testCase, j.JobID, j.StepID, j.Restart)
			all[key] = append(all[key], j)
		}
	}
	return all
}

// In every captured step each position is taken exactly once, whatever the
// distribution, and the distribution, where known, predicts the whole table.
func TestEveryPositionOnce(t *testing.T) {
	predicted := make(map[string]int)
	for key, jobs := range steps(t) {
		exchanged := NewTable(jobs[0].Layout)
		for _, j := range jobs {
			p, err := j.Layout.Position(j.Node, j.Local)
			if err != nil || p != j.Position() {
				t.Errorf("%s: position %d or %d, %v", key, p, j.Position(), err)
			}
			if node, local, err := j.Layout.Place(p); node != j.Node || local != j.Local || err != nil {
				t.Errorf("%s: place of position %d is %d/%d, %v; want %d/%d", key, p, node, local, err, j.Node, j.Local)
			}
			if err := exchanged.Set(j.Rank, p); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
		if missing, ok := exchanged.Complete(); !ok {
			t.Errorf("%s: %d tasks captured, ranks %v have no position", key, len(jobs), missing)
		}
		for _, j := range jobs {
			known, err := j.Known()
			if err != nil {
				t.Errorf("%s: %v", key, err)
				continue
			}
			if err := exchanged.Verify(known); err != nil {
				t.Errorf("%s: %v", key, err)
			}
			p, ok := j.Predicted()
			if !ok {
				continue
			}
			predicted[j.Distribution.Kind]++
			if err := exchanged.Verify(p); err != nil {
				t.Errorf("%s: %s: %v", key, j.Distribution.Kind, err)
			}
		}
	}
	t.Logf("predictions checked: %v", predicted)
	if predicted["block"] == 0 || predicted["cyclic"] == 0 {
		t.Errorf("predictions checked: %v", predicted)
	}
}

// The placements that Slurm 22.05 made, as rank:node/local.
func TestDistributions(t *testing.T) {
	for _, c := range []struct {
		distribution string
		plane        int
		tasks        []int
		want         string
	}{
		{"block", 0, []int{2, 2, 2, 2}, "0/0 0/1 1/0 1/1 2/0 2/1 3/0 3/1"},
		{"cyclic", 0, []int{2, 2, 2, 2}, "0/0 1/0 2/0 3/0 0/1 1/1 2/1 3/1"},
		{"cyclic", 0, []int{4, 4}, "0/0 1/0 0/1 1/1 0/2 1/2 0/3 1/3"},
		{"plane", 2, []int{4, 4}, "0/0 0/1 1/0 1/1 0/2 0/3 1/2 1/3"},
		{"plane=2", 0, []int{4, 4}, "0/0 0/1 1/0 1/1 0/2 0/3 1/2 1/3"},
		{"cyclic:block,NoPack", 0, []int{4, 2, 1, 1}, "0/0 1/0 2/0 3/0 0/1 1/1 0/2 0/3"},
		{"cyclic", 0, []int{3, 1, 1}, "0/0 1/0 2/0 0/1 0/2"},
		{"block,Pack", 0, []int{3, 1, 1}, "0/0 0/1 0/2 1/0 2/0"},
	} {
		nodes := make([]string, len(c.tasks))
		for i := range nodes {
			nodes[i] = fmt.Sprintf("n%d", i)
		}
		l, err := NewLayout(nodes, c.tasks)
		if err != nil {
			t.Fatal(err)
		}
		d := ParseDistribution(c.distribution)
		if c.plane != 0 {
			d.Plane = c.plane
		}
		table, ok := d.Table(l)
		if !ok {
			t.Errorf("%s %v: not determined", c.distribution, c.tasks)
			continue
		}
		var got []string
		for rank := range l.Size() {
			p, _ := table.Position(rank)
			node, local, err := l.Place(p)
			if err != nil {
				t.Error(err)
			}
			got = append(got, fmt.Sprintf("%d/%d", node, local))
			if back, ok := table.Rank(p); back != rank || !ok {
				t.Errorf("%s %v: rank %d is at %d, where rank %d is", c.distribution, c.tasks, rank, p, back)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s %v: %v, want %s", c.distribution, c.tasks, got, c.want)
		}
	}
	l, err := NewLayout([]string{"a", "b"}, []int{2, 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"", "arbitrary", "plane", "tomorrow"} {
		if _, ok := ParseDistribution(d).Table(l); ok {
			t.Errorf("distribution %q determines a table", d)
		}
	}
}

func TestTableRefusesRepeats(t *testing.T) {
	l, err := NewLayout([]string{"n0", "n1"}, []int{2, 1})
	if err != nil {
		t.Fatal(err)
	}
	table := NewTable(l)
	if err := table.SetNode(0, []int{2, 0}); err != nil {
		t.Fatal(err)
	}
	if err := table.Set(2, 0); err != nil {
		t.Errorf("the same again: %v", err)
	}
	for _, c := range []struct {
		rank, position int
		is             error
		says           string
	}{
		{1, 0, ErrRepeated, "rank 2 and rank 1 both at position 0 (node 0 n0, local id 0)"},
		{2, 2, ErrRepeated, "rank 2 at position 0 (node 0 n0, local id 0) and at position 2 (node 1 n1, local id 0)"},
		{3, 2, ErrRange, "rank 3 at position 2, but there are 3 tasks"},
		{1, -1, ErrRange, "rank 1 at position -1"},
	} {
		if err := table.Set(c.rank, c.position); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("Set(%d, %d): %v, want %q", c.rank, c.position, err, c.says)
		}
	}
	if missing, ok := table.Complete(); ok || !slices.Equal(missing, []int{1}) {
		t.Errorf("missing %v, %v", missing, ok)
	}
	block, _ := ParseDistribution("block").Table(l)
	if err := table.Verify(block); !errors.Is(err, ErrInconsistent) || !strings.Contains(err.Error(), "rank 0") {
		t.Errorf("Verify: %v", err)
	}
}

// A prediction that contradicts the task's own place is not used.
func TestKnownTrustsOwnPlace(t *testing.T) {
	env := readEnv(t, "testdata/slurm-env/cyclic-4n2t.t5.env")
	env["SLURM_DISTRIBUTION"] = "block"
	j, err := FromEnv(lookupIn(env))
	if err != nil {
		t.Fatal(err)
	}
	known, err := j.Known()
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := known.Position(5); p != 3 || !ok {
		t.Errorf("rank 5 at position %d, %v; want 3", p, ok)
	}
	if missing, ok := known.Complete(); ok || len(missing) != 6 {
		t.Errorf("missing %v; want the six ranks of other nodes", missing)
	}
}

// A step dealt out by plane=2: the size of a turn is in a variable of its own,
// and the prediction of the table is what the nine tasks found.
func TestPlaneFromCapturedEnvironments(t *testing.T) {
	var exchanged, predicted *Table
	for rank := range 9 {
		j, err := FromEnv(lookupIn(readEnv(t, fmt.Sprintf("testdata/plane/t%d.env", rank))))
		if err != nil {
			t.Fatal(err)
		}
		if exchanged == nil {
			exchanged = NewTable(j.Layout)
		}
		if err := exchanged.Set(j.Rank, j.Position()); err != nil {
			t.Error(err)
		}
		var ok bool
		if predicted, ok = j.Predicted(); !ok || j.Distribution != (Distribution{"plane", 2}) {
			t.Fatalf("distribution %+v predicts nothing", j.Distribution)
		}
	}
	if missing, ok := exchanged.Complete(); !ok {
		t.Errorf("ranks %v have no position", missing)
	}
	if err := exchanged.Verify(predicted); err != nil {
		t.Error(err)
	}
	if p, _ := exchanged.Position(2); p == 2 {
		t.Error("rank and position are the same: this proves nothing")
	}
}
