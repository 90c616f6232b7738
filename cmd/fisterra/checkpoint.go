package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/slurm"
)

// owner is who saves into a checkpoint directory. Slurm requeues the job of a node
// that it cannot reach, on which the ranks may live on and go on saving: the directory
// belongs to the run that began last, and never to a job's earlier incarnation. Each owner
// saves into a file of its own, so that one that has not heard yet of its successor, or hears of
// it between looking and writing, replaces nothing that the successor goes on from.
type owner struct {
	Job     int    `json:"job,omitempty"`
	Restart int    `json:"restart"` // SLURM_RESTART_COUNT
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Token   string `json:"token"` // of this run and no other
	State   string `json:"state"` // its file in the directory
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

// stateLink is the name under which users find the owner's file. A run whose
// directory has none begins anew.
const stateLink = "state.safetensors"

// claim is a directory that a run has made its own.
type claim struct {
	dir string
	own owner
}

// claimDirectory makes the directory if need be, and the run its owner, with
// what the owner before has saved last.
func claimDirectory(dir string, own owner) (claim, error) {
	own.State = fmt.Sprintf("state-%s.safetensors", own.Token)
	c := claim{dir, own}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return c, fmt.Errorf("--checkpoint: %w", err)
	}
	for {
		before, err := c.owner()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
		if before.Job == own.Job && own.Job != 0 && before.Restart > own.Restart {
			return c, fmt.Errorf("--checkpoint %s belongs to a later incarnation (%v) of this job's restart %d", dir, before, own.Restart)
		}
		if err := c.inherit(before); errors.Is(err, errGone) {
			continue // another run has taken over meanwhile
		} else if err != nil {
			return c, fmt.Errorf("--checkpoint: %w", err)
		}
		text, err := json.Marshal(own)
		if err != nil {
			return c, err
		}
		temp := c.path(ownerFile + "." + own.Token)
		if err := os.WriteFile(temp, append(text, '\n'), 0o644); err != nil {
			return c, fmt.Errorf("--checkpoint: %w", err)
		}
		if err := os.Rename(temp, c.path(ownerFile)); err != nil {
			return c, fmt.Errorf("--checkpoint: %w", err)
		}
		if err := c.show(); err != nil {
			return c, err
		}
		if before.State != "" {
			if err := os.Remove(c.path(before.State)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return c, fmt.Errorf("--checkpoint: %w", err)
			}
		}
		return c, nil
	}
}

// errGone: the file of the owner before has been removed by another successor.
var errGone = errors.New("the owner has changed")

// inherit makes what the owner before saved last this run's own file.
func (c claim) inherit(before owner) error {
	if _, err := os.Lstat(c.path(stateLink)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	from := before.State
	if from == "" {
		from = stateLink // a file that somebody has put there
	}
	err := os.Link(c.path(from), c.state())
	if errors.Is(err, fs.ErrNotExist) { // never saved, unless it was there a moment ago
		if now, err := c.owner(); err == nil && now.Token != before.Token {
			return errGone
		}
		return nil
	}
	if err != nil { // a file system without links
		text, readErr := os.ReadFile(c.path(from))
		if readErr != nil {
			return errors.Join(err, readErr)
		}
		return os.WriteFile(c.state(), text, 0o644)
	}
	return nil
}

// show lets the users' name stand for this run's file.
func (c claim) show() error {
	if target, err := os.Readlink(c.path(stateLink)); err == nil && target == c.own.State {
		return nil
	}
	temp := c.path(stateLink + "." + c.own.Token)
	if err := os.Symlink(c.own.State, temp); err != nil {
		return fmt.Errorf("--checkpoint: %w", err)
	}
	if err := os.Rename(temp, c.path(stateLink)); err != nil {
		return fmt.Errorf("--checkpoint: %w", err)
	}
	return nil
}

const ownerFile = "owner.json"

func (c claim) path(name string) string { return filepath.Join(c.dir, name) }

// state is the file that this run saves in, and resumes from; "" without
// --checkpoint.
func (c claim) state() string {
	if c.dir == "" {
		return ""
	}
	return c.path(c.own.State)
}

func (c claim) owner() (o owner, err error) {
	text, err := os.ReadFile(c.path(ownerFile))
	if err != nil {
		return o, fmt.Errorf("--checkpoint: %w", err)
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, fmt.Errorf("--checkpoint: %s: %w", c.path(ownerFile), err)
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
	return c.show() // of two that took over at a time, the other may have come last
}

// ownerBytes is enough for an owner as text.
const ownerBytes = 1 << 10

// claim makes the directory of --checkpoint this run's: the chief does, and
// tells all ranks, since any worker that is left may have to save in its place.
func (t *trainFlags) claim(ctx context.Context, env environment, w *mpi.World, chief int) (claim, error) {
	if t.checkpoint == "" {
		return claim{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.connectFlags.start)
	defer cancel()
	c := claim{dir: t.checkpoint}
	text := make([]byte, ownerBytes)
	if w.Rank() == chief {
		var err error
		if c, err = claimDirectory(t.checkpoint, claimant(env)); err != nil {
			return c, usageError(err)
		}
		own, err := json.Marshal(c.own)
		if err != nil {
			return c, err
		}
		copy(text, own)
	}
	if err := collective.Bcast(ctx, w.Comm(), text, chief); err != nil {
		return c, fmt.Errorf("--checkpoint %s: the chief's claim: %w", t.checkpoint, err)
	}
	return c, json.Unmarshal(bytes.TrimRight(text, "\x00"), &c.own)
}
