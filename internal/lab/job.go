package lab

import (
	"context"
	"strings"
	"time"
)

// Job is what `scontrol show job` says of a job, field by field: JobState, ExitCode,
// NodeList, Restarts, Reason ...
type Job map[string]string

// State is Slurm's word for where the job stands: PENDING, RUNNING, COMPLETED, CANCELLED ...
func (j Job) State() string { return j["JobState"] }

// Over reports whether the job has ended for good.
func (j Job) Over() bool {
	switch j.State() {
	case "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE":
		return true
	}
	return false
}

// Submit runs sbatch with these arguments on the controller and returns the job's id; the
// script may be given as the text of stdin.
func (s *Slurm) Submit(ctx context.Context, stdin string, args ...string) string {
	s.t.Helper()
	cmd := s.Command(ctx, append([]string{"sbatch", "--parsable"}, args...)...)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	r := cmd.Run()
	if r.Code != 0 {
		s.t.Fatalf("sbatch %s: %v", strings.Join(args, " "), r)
	}
	id, _, _ := strings.Cut(strings.TrimSpace(r.Stdout), ";")
	return id
}

// Job asks Slurm for a job.
func (s *Slurm) Job(ctx context.Context, id string) Job {
	s.t.Helper()
	job, r := s.job(ctx, id)
	if r.Code != 0 {
		s.t.Fatalf("scontrol show job %s: %v", id, r)
	}
	return job
}

// job is what scontrol says of a job, and how scontrol ended.
func (s *Slurm) job(ctx context.Context, id string) (Job, Result) {
	r := s.Exec(ctx, "scontrol", "-o", "show", "job", id)
	job := Job{}
	for _, field := range strings.Fields(r.Stdout) {
		if key, value, ok := strings.Cut(field, "="); ok {
			job[key] = value
		}
	}
	return job, r
}

// Await polls a job until it is as wanted and returns it; the test fails when ctx ends
// (Patience from now without a deadline). Slurm offers no event to wait for:
// `sbatch --wait` itself polls, every two seconds.
func (s *Slurm) Await(ctx context.Context, id, what string, wanted func(Job) bool) Job {
	s.t.Helper()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Patience)
		defer cancel()
	}
	tick := time.NewTicker(200 * time.Millisecond) // each look is five processes, on a machine with other work
	defer tick.Stop()
	for {
		// A busy controller may be late once.
		job, r := s.job(context.WithoutCancel(ctx), id)
		if r.Code == 0 && wanted(job) {
			return job
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("job %s is not %s in time: %v (scontrol: %v)", id, what, job, r)
		case <-tick.C:
		}
	}
}
