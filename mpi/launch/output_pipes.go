package launch

import (
	"os"
	"strconv"
	"sync"
	"time"
)

// outputPipes are a rank's standard output and standard error: what is read here, and what the rank writes to.
type outputPipes struct{ read, write [2]*os.File }

func newOutputPipes() (o outputPipes, err error) {
	for i := range o.read {
		if o.read[i], o.write[i], err = os.Pipe(); err != nil {
			closeBoth(o.read)
			closeBoth(o.write)
			return o, err
		}
	}
	return o, nil
}

func closeBoth(files [2]*os.File) {
	for _, f := range files {
		f.Close() // nil: an error that nobody needs
	}
}

// copyOutput hands on what a rank writes, line by line, until both of its outputs are closed; it closes copied then.
func (j *job) copyOutput(rank int, o outputPipes, log *rankLog) (copied <-chan struct{}) {
	prefix := ""
	if j.cfg.Label == ByRank {
		prefix = strconv.Itoa(rank) + ": "
	}
	j.closers = append(j.closers, o.read[0], o.read[1])
	var copies sync.WaitGroup
	for i, to := range []*lines{j.out, j.errs} {
		copies.Go(func() {
			to.copy(&output{File: o.read[i]}, prefix, log)
			o.read[i].Close()
		})
	}
	done := make(chan struct{})
	go func() {
		copies.Wait()
		close(done)
	}()
	return done
}

// awaitOutput waits until the output of a rank that is over has been taken, and reports whether it was. A daemon may have
// taken the pipes along: it does not hold up the job. Once ranks have been killed the output is given up after a while: the
// writer that takes it may be stuck for good, and must not hold up the job.
func (j *job) awaitOutput(o outputPipes, copied <-chan struct{}) bool {
	late := time.AfterFunc(lateOutput, func() {
		for _, f := range o.read {
			f.SetReadDeadline(time.Now())
		}
	})
	defer late.Stop()
	select {
	case <-copied:
		return true
	case <-j.killed:
	}
	select {
	case <-copied:
		return true
	case <-time.After(2 * lateOutput): // time for what a daemon holds open, too
		return false
	}
}
