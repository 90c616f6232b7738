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
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps/train"
	"github.com/fisterra-hpc/fisterra/slurm"
)

// owner is the run that saves into a checkpoint directory. Slurm requeues the job of a node that it cannot reach,
// on which the ranks may live on and go on saving. So the directory belongs to the run that began last, and never
// to an earlier incarnation of a job. Each owner saves into a file of its own: an owner that has not heard of its
// successor yet, or hears of it between looking and writing, replaces nothing that the successor goes on from.
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

// claimant is this process as an owner. It knows the job as the batch script does; a rank knows that much even
// where the step is that of another launcher's daemons.
func claimant(env environment) (owner, error) {
	o := owner{PID: os.Getpid(), Token: rand.Text()}
	o.Host, _ = os.Hostname() // for messages only
	job, inside, err := slurm.AllocationFromEnv(env.lookup)
	if err != nil {
		return o, fmt.Errorf("--checkpoint: which incarnation of which job this is: %w", err)
	}
	if inside {
		o.Job, o.Restart = job.JobID, job.Restart
	}
	return o, nil
}

// stateLink is the name under which users find the owner's file. A run whose directory lacks this name begins anew.
// If a user puts a file in its place, the next run goes on from that file.
const stateLink = "state.safetensors"

// claim is a directory that a run has made its own, or is about to (take).
type claim struct {
	dir string
	own owner
}

func newClaim(dir string, own owner) claim {
	own.State = fmt.Sprintf("state-%s.safetensors", own.Token)
	return claim{dir, own}
}

// take makes the directory if need be, and this run its owner. resume reads what the previous owner saved last, and
// reports whether this run can go on from it: if not, the previous owner stays, and may still save. resume is
// called twice if the previous owner has saved meanwhile.
func (c claim) take(resume func() error) error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return directoryError(fmt.Errorf("--checkpoint: %w", err))
	}
	for {
		before, err := c.owner()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return directoryError(err)
		}
		if before.Job == c.own.Job && c.own.Job != 0 && before.Restart > c.own.Restart {
			return usageError(fmt.Errorf("--checkpoint %s belongs to a later incarnation (%v) of this job's restart %d", c.dir, before, c.own.Restart))
		}
		err = c.replace(before, resume)
		if !errors.Is(err, errGone) {
			return err
		}
	}
}

// errGone: another run has taken over meanwhile.
var errGone = errors.New("the owner has changed")

// replace makes this run the owner in place of before.
func (c claim) replace(before owner, resume func() error) error {
	read := c.saved(before)
	err := c.inherit(before)
	if err == nil {
		err = resume()
	}
	if err == nil {
		err = c.enter(before)
	}
	if err != nil {
		os.Remove(c.state())
		var data *train.DataError
		if errors.As(err, &data) && data.File == c.state() {
			data.File = c.path(stateLink) // the link stays, and is what a user may remove
		}
		return err
	}
	if now := c.saved(before); now != nil && !unchanged(now, read) {
		if err := c.inherit(before); err != nil && !errors.Is(err, errGone) {
			return err
		}
		if err := resume(); err != nil {
			return err
		}
		read = now
	}
	if err := c.show(read); err != nil {
		return directoryError(err)
	}
	if before.State != "" {
		if err := syncDirectory(c.dir); err != nil { // else neither file may be there after a crash
			return directoryError(fmt.Errorf("--checkpoint: %w", err))
		}
		if err := os.Remove(c.path(before.State)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return directoryError(fmt.Errorf("--checkpoint: %w", err))
		}
	}
	c.sweep()
	return nil
}

// enter writes this run into the owner file, unless the directory has changed hands.
func (c claim) enter(before owner) error {
	if now, err := c.owner(); err == nil && now.Token != before.Token {
		return errGone
	}
	text, err := json.Marshal(c.own)
	if err != nil {
		return err
	}
	temp := c.path(ownerFile + "." + c.own.Token)
	if err := writeSynced(temp, append(text, '\n')); err != nil {
		os.Remove(temp)
		return directoryError(fmt.Errorf("--checkpoint: %w", err))
	}
	if err := os.Rename(temp, c.path(ownerFile)); err != nil {
		os.Remove(temp)
		return directoryError(fmt.Errorf("--checkpoint: %w", err))
	}
	return nil
}

// writeSynced writes a file that is to be renamed, and brings it to the disk: a machine that goes down after the
// renaming must not leave an empty one.
func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// syncDirectory brings the names in a directory to the disk, on file systems that know of such a thing.
func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// source is where the state to go on from is found: in a file that a user has put there, or in that of the previous
// owner.
func (c claim) source(before owner) string {
	if file, ok := c.placed(before); ok {
		return file
	}
	if before.State == "" {
		return c.path(stateLink)
	}
	return c.path(before.State)
}

// placed is a file that a user has put under the name of the link, or has linked there. A link to the owner's file,
// or to that of another run, does not count.
func (c claim) placed(o owner) (string, bool) {
	link := c.path(stateLink)
	if target, err := os.Readlink(link); err == nil && (target == o.State || leftFile.MatchString(target)) {
		return "", false
	}
	file, err := filepath.EvalSymlinks(link) // resolved: a hard link to a symbolic link would follow its next change
	return file, err == nil
}

// unchanged reports whether now is the very file that before was.
func unchanged(now, before fs.FileInfo) bool {
	return before != nil && os.SameFile(now, before) && now.ModTime().Equal(before.ModTime())
}

// saved is the file to go on from, which an owner has saved last; nil if there is none.
func (c claim) saved(before owner) fs.FileInfo {
	if _, err := os.Lstat(c.path(stateLink)); err != nil {
		return nil
	}
	info, err := os.Stat(c.source(before))
	if err != nil {
		return nil
	}
	return info
}

// inherit makes what the previous owner saved last this run's own file, too. At no moment is that file missing, not
// even while it replaces what was inherited earlier.
func (c claim) inherit(before owner) error {
	if _, err := os.Lstat(c.path(stateLink)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	temp := c.path("." + c.own.State + ".0")
	defer os.Remove(temp)                                // renaming a hard link to another one of the same file leaves it there
	from, err := filepath.EvalSymlinks(c.source(before)) // resolved: a hard link to a symbolic link would lead out of the run's own file
	if err == nil {
		err = os.Link(from, temp)
	}
	if errors.Is(err, fs.ErrNotExist) { // never saved, or removed by a new owner a moment ago
		if now, err := c.owner(); err == nil && now.Token != before.Token {
			return errGone
		}
		return nil
	}
	if err != nil { // a file system without links
		text, readErr := os.ReadFile(c.source(before))
		if readErr != nil {
			return directoryError(fmt.Errorf("--checkpoint: %w", errors.Join(err, readErr)))
		}
		if err := writeSynced(temp, text); err != nil {
			return directoryError(fmt.Errorf("--checkpoint: %w", err))
		}
	}
	if err := os.Rename(temp, c.state()); err != nil {
		return directoryError(fmt.Errorf("--checkpoint: %w", err))
	}
	return nil
}

// leftFile is the name of a file that some run has saved in, or was saving in when it was
// killed.
var leftFile = regexp.MustCompile(`^\.?state-[A-Z2-7]{26,}\.safetensors(\.[0-9]+)?$`)

// leftName is the name of a file or link that was to be renamed to the owner's file, or to stateLink, when its run
// was killed.
var leftName = regexp.MustCompile(`^(owner\.json|state\.safetensors)\.[A-Z2-7]{26,}$`)

// claimTime is longer than such a name is there while its run lives.
const claimTime = time.Minute

// sweep removes what runs have left that no longer own the directory: a file that such a run was writing when it
// was killed, and one that it wrote after it had been replaced. A run that is about to take over has a link to the
// state that this run went on from: the link costs nothing, and stays. What cannot be removed stays, too.
func (c claim) sweep() {
	entries, _ := os.ReadDir(c.dir)
	if now, err := c.owner(); err != nil || now.Token != c.own.Token {
		return
	}
	own, _ := os.Stat(c.state())
	taken, _ := os.Stat(c.path(ownerFile)) // by the clock of the file system
	for _, e := range entries {
		if info, err := e.Info(); leftName.MatchString(e.Name()) && err == nil && taken != nil && taken.ModTime().Sub(info.ModTime()) > claimTime {
			os.Remove(c.path(e.Name()))
			continue
		}
		if !leftFile.MatchString(e.Name()) || strings.Contains(e.Name(), c.own.State) {
			continue
		}
		if info, err := e.Info(); err == nil && (own == nil || !os.SameFile(info, own)) {
			os.Remove(c.path(e.Name()))
		}
	}
}

// show makes stateLink, the name that users know, lead to this run's file. A file that a user has put there stays
// for the next run, unless it is the one that this run has read.
func (c claim) show(read fs.FileInfo) error {
	if target, err := os.Readlink(c.path(stateLink)); err == nil && target == c.own.State {
		return nil
	}
	if file, ok := c.placed(c.own); ok {
		if now, err := os.Stat(file); err == nil && !unchanged(now, read) {
			return nil
		}
	}
	temp := c.path(stateLink + "." + c.own.Token)
	if err := os.Symlink(c.own.State, temp); err != nil {
		return fmt.Errorf("--checkpoint: %w", err)
	}
	if err := os.Rename(temp, c.path(stateLink)); err != nil {
		os.Remove(temp)
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
		return o, fmt.Errorf("--checkpoint: %s: %w; remove the file if no run saves here any more", c.path(ownerFile), err)
	}
	if o.State != "" && filepath.Base(o.State) != o.State { // it will be removed
		return o, fmt.Errorf("--checkpoint: %s: the state %q is elsewhere; want the name of a file in this directory", c.path(ownerFile), o.State)
	}
	return o, nil
}

// check does what held does, and shows users this run's file.
func (c claim) check() error {
	if err := c.held(); err != nil || c.dir == "" {
		return err
	}
	return c.show(nil) // of two runs that took over at the same time, the other may have set the link last
}

// held fails when another run has taken the directory over.
func (c claim) held() error {
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

// ownerBytes is enough for an owner as text.
const ownerBytes = 1 << 10

// claim prepares this run's claim to the directory of --checkpoint. The chief makes
// it and tells all ranks, since any worker that is left may have to save in its place.
func (t *trainFlags) claim(ctx context.Context, env environment, w *mpi.World, chief int) (claim, error) {
	if t.checkpoint == "" {
		return claim{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.connectFlags.start)
	defer cancel()
	c := claim{dir: t.checkpoint}
	text := make([]byte, ownerBytes)
	if w.Rank() == chief {
		o, err := claimant(env)
		if err != nil {
			return c, usageError(err)
		}
		own, err := json.Marshal(newClaim(t.checkpoint, o).own)
		if err != nil {
			return c, err
		}
		copy(text, own)
	}
	if err := collective.Bcast(ctx, w.Comm(), text, chief); err != nil {
		return c, fmt.Errorf("--checkpoint %s: who the chief is: %w", t.checkpoint, err)
	}
	return c, json.Unmarshal(bytes.TrimRight(text, "\x00"), &c.own)
}
