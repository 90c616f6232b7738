package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fisterra-hpc/fisterra/slurm"
)

// checkpointFile is the file in the directory of --checkpoint; "" without.
func (t *trainFlags) checkpointFile() string {
	if t.checkpoint == "" {
		return ""
	}
	return filepath.Join(t.checkpoint, "state.safetensors")
}

// owner is who saves into a checkpoint directory. Slurm requeues the job of a node
// that it cannot reach, on which the ranks may live on and go on saving: the directory
// belongs to the run that began last, and never to a job's earlier incarnation.
type owner struct {
	Job     int    `json:"job,omitempty"`
	Restart int    `json:"restart"` // SLURM_RESTART_COUNT
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Token   string `json:"token"` // of this run and no other
}

func (o owner) String() string {
	if o.Job == 0 {
		return fmt.Sprintf("process %d on %s", o.PID, o.Host)
	}
	return fmt.Sprintf("job %d, restart %d, process %d on %s", o.Job, o.Restart, o.PID, o.Host)
}

// claimant is this process as an owner.
func claimant(env environment) owner {
	o := owner{PID: os.Getpid(), Token: rand.Text()}
	o.Host, _ = os.Hostname() // for messages only
	if job, err := slurm.FromEnv(env.lookup); err == nil {
		o.Job, o.Restart = job.JobID, job.Restart
	}
	return o
}

// claim is a directory that a run has made its own.
type claim struct {
	dir string
	own owner
}

// claimDirectory makes the directory if need be, and the run its owner.
func claimDirectory(dir string, own owner) (claim, error) {
	c := claim{dir, own}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return c, fmt.Errorf("--checkpoint: %w", err)
	}
	before, err := c.owner()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if err == nil && before.Job == own.Job && own.Job != 0 && before.Restart > own.Restart {
		return c, fmt.Errorf("--checkpoint %s belongs to a later incarnation (%v) of this job's restart %d", dir, before, own.Restart)
	}
	text, err := json.Marshal(own)
	if err != nil {
		return c, err
	}
	temp := c.file() + "." + own.Token
	if err := os.WriteFile(temp, append(text, '\n'), 0o644); err != nil {
		return c, fmt.Errorf("--checkpoint: %w", err)
	}
	if err := os.Rename(temp, c.file()); err != nil {
		return c, fmt.Errorf("--checkpoint: %w", err)
	}
	return c, nil
}

func (c claim) file() string { return filepath.Join(c.dir, "owner.json") }

func (c claim) owner() (o owner, err error) {
	text, err := os.ReadFile(c.file())
	if err != nil {
		return o, fmt.Errorf("--checkpoint: %w", err)
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, fmt.Errorf("--checkpoint: %s: %w", c.file(), err)
	}
	return o, nil
}

// check fails when another run has taken the directory over.
func (c claim) check() error {
	if c.dir == "" {
		return nil
	}
	now, err := c.owner()
	if err != nil {
		return err
	}
	if now.Token != c.own.Token {
		return fmt.Errorf("--checkpoint %s was taken over by %v; nothing is saved, and this run (%v) ends", c.dir, now, c.own)
	}
	return nil
}
