package slurm

import "strconv"

// Allocation is what Slurm tells every process of a job, the batch script
// included.
type Allocation struct {
	JobID     int    // SLURM_JOB_ID, 0 when not set
	Name      string // SLURM_JOB_NAME
	Partition string // SLURM_JOB_PARTITION
	Cluster   string // SLURM_CLUSTER_NAME
	NodeList  string // SLURM_JOB_NODELIST, a hostlist: the job's nodes, not the step's
	// Restart is SLURM_RESTART_COUNT: how often the job was requeued. A process of
	// an earlier incarnation may still be alive; it has a lower number.
	Restart int
	Array   *Array // nil unless the job is a task of an array
	Het     *Het   // nil unless the job is heterogeneous
}

// Array is the job's place in a job array.
type Array struct {
	JobID               int // of the array; each task has a JobID of its own as well
	TaskID              int
	Count               int
	Min, Max, Increment int
}

// Het describes a heterogeneous job. A step over several groups has one rank
// space over all of them, and its own variables already cover the union.
type Het struct {
	Groups []HetGroup
}

// HetGroup is one component of a heterogeneous job.
type HetGroup struct {
	JobID    int
	NodeList string
	Tasks    int
}

// AllocationFromEnv reads what a batch script or another launcher's rank also
// knows of its job. ok is false outside a job.
func AllocationFromEnv(lookup Lookup) (a Allocation, ok bool, err error) {
	e := env{lookup: lookup}
	if !e.has("SLURM_JOB_ID", "SLURM_JOBID") {
		return a, false, nil
	}
	a = e.allocation()
	return a, e.err == nil, e.err
}

func (e *env) allocation() Allocation {
	const maxID = 1<<32 - 1
	id := func(names ...string) int {
		for _, name := range names {
			if n := e.optional(name, maxID); n != 0 {
				return n
			}
		}
		return 0
	}
	a := Allocation{
		JobID:     id("SLURM_JOB_ID", "SLURM_JOBID"),
		Name:      e.get("SLURM_JOB_NAME"),
		Partition: e.get("SLURM_JOB_PARTITION"),
		Cluster:   e.get("SLURM_CLUSTER_NAME"),
		NodeList:  e.get("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
		Restart:   e.optional("SLURM_RESTART_COUNT", maxID),
	}
	if e.has("SLURM_ARRAY_JOB_ID") {
		a.Array = &Array{
			JobID:     id("SLURM_ARRAY_JOB_ID"),
			TaskID:    e.optional("SLURM_ARRAY_TASK_ID", maxID),
			Count:     e.optional("SLURM_ARRAY_TASK_COUNT", maxID),
			Min:       e.optional("SLURM_ARRAY_TASK_MIN", maxID),
			Max:       e.optional("SLURM_ARRAY_TASK_MAX", maxID),
			Increment: e.optional("SLURM_ARRAY_TASK_STEP", maxID),
		}
	}
	const maxGroups = 4096
	if n := e.optional("SLURM_HET_SIZE", maxGroups); n > 0 && e.err == nil {
		a.Het = &Het{Groups: make([]HetGroup, n)}
		for i := range a.Het.Groups {
			suffix := "_HET_GROUP_" + strconv.Itoa(i)
			a.Het.Groups[i] = HetGroup{
				JobID:    id("SLURM_JOB_ID" + suffix),
				NodeList: e.get("SLURM_JOB_NODELIST" + suffix),
				Tasks:    e.optional("SLURM_NTASKS"+suffix, maxTasks),
			}
		}
	}
	return a
}
