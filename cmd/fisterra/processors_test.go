package main

import (
	"maps"
	"testing"
)

func TestProcessors(t *testing.T) {
	step := map[string]string{ // a task of four on the first of two nodes
		"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[0-1]", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "4,2",
		"SLURM_PROCID": "1", "SLURM_NODEID": "0", "SLURM_LOCALID": "1", "SLURM_CPUS_ON_NODE": "12",
	}
	with := func(base map[string]string, name, value string) map[string]string {
		vars := maps.Clone(base)
		vars[name] = value
		return vars
	}
	for _, c := range []struct {
		name        string
		vars        map[string]string
		bound, want int
	}{
		{"alone", nil, 64, 64},
		{"srun", step, 64, 3},
		{"srun --cpus-per-task", with(step, "SLURM_CPUS_PER_TASK", "6"), 64, 6},
		{"srun, bound to less", with(step, "SLURM_CPUS_PER_TASK", "6"), 2, 2},
		{"srun --overcommit", with(step, "SLURM_CPUS_ON_NODE", "2"), 64, 1},
		{"fisterra run in a step", with(with(step, "SLURM_CPUS_PER_TASK", "6"), "FISTERRA_LOCAL_SIZE", "16"), 64, 4},
		{"mpirun in a step", with(step, "OMPI_COMM_WORLD_LOCAL_SIZE", "8"), 64, 8},
		{"more ranks than processors", map[string]string{"FISTERRA_LOCAL_SIZE": "4"}, 2, 1},
		{"a batch shell", map[string]string{"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "6"}, 64, 64},
	} {
		lookup := func(name string) (string, bool) {
			v, ok := c.vars[name]
			return v, ok
		}
		if got := processors(lookup, c.bound); got != c.want {
			t.Errorf("%s: %d of %d processors, want %d", c.name, got, c.bound, c.want)
		}
	}
}
