package slurm

import (
	"fmt"
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
	for rank := range 9 { // dealt out by plane=2
		j, err := FromEnv(lookupIn(readEnv(t, fmt.Sprintf("testdata/plane/t%d.env", rank))))
		if err != nil {
			t.Fatal(err)
		}
		all["plane"] = append(all["plane"], j)
	}
	return all
}

// In every captured step each position is taken exactly once, whatever the
// distribution, and leads back to its task's place.
func TestEveryPositionOnce(t *testing.T) {
	differ := 0
	for key, jobs := range steps(t) {
		ranks := make(map[int]int) // by position
		for _, j := range jobs {
			p, err := j.Layout.Position(j.Node, j.Local)
			if err != nil || p != j.Position() {
				t.Errorf("%s: position %d or %d, %v", key, p, j.Position(), err)
			}
			if node, local, err := j.Layout.Place(p); node != j.Node || local != j.Local || err != nil {
				t.Errorf("%s: place of position %d is %d/%d, %v; want %d/%d", key, p, node, local, err, j.Node, j.Local)
			}
			if other, taken := ranks[p]; taken {
				t.Errorf("%s: ranks %d and %d are both at position %d", key, other, j.Rank, p)
			}
			if ranks[p] = j.Rank; j.Rank != p {
				differ++
			}
		}
		if n := jobs[0].Layout.Size(); len(ranks) != n {
			t.Errorf("%s: %d of %d positions are taken", key, len(ranks), n)
		}
	}
	if differ == 0 {
		t.Error("rank and position are the same everywhere: this proves nothing")
	}
}
