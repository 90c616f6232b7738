package slurm

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
	return Allocation{
		JobID:     id("SLURM_JOB_ID", "SLURM_JOBID"),
		Name:      e.get("SLURM_JOB_NAME"),
		Partition: e.get("SLURM_JOB_PARTITION"),
		Cluster:   e.get("SLURM_CLUSTER_NAME"),
		NodeList:  e.get("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
		Restart:   e.optional("SLURM_RESTART_COUNT", maxID),
	}
}
