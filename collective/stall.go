package collective

import (
	"fmt"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// If a collective makes no progress, the look-out asks the rank that it waits for what that rank does, and asks again each
// time that the wait has become twice as long. The answer may be that the rank called something else, which ends
// collectives for all (heed). Otherwise, after a longer time, the answer goes into a stall report. It is asked for anew
// then, so that the report says how things are.
//
// If the system's MPI library does a collective, nobody knows for which rank it waits. One rank after the other is asked,
// since one may have called something else; what they answer goes into no report.

// askAfter is how long a collective makes no progress before the rank that it waits for is asked, unless it is reported
// before that, and how long a stall report waits for the answer.
const askAfter = time.Second

// glimpse is what the look-out sees of an execution.
type glimpse struct {
	seq       uint32
	signature signature
	progress  uint32
	peer      int  // the rank it waits for, nobody, finished or elsewhere
	inLibrary bool // the system's MPI library does it, and nobody knows for whom that waits
	exchange  exchange
}

// question asks a rank what it does, since this one waits for it in a collective.
type question struct {
	seq  uint32
	peer int
}

// patience is how long the look-out has seen an execution wait for a rank.
type patience struct {
	progress uint32
	mute     bool // no report waits for an answer, which may be of any rank
	asks     int  // how often one was asked
	since    time.Time
	seen     time.Time // last
	asked    time.Time // last; zero: not yet
	answer   string    // to the last question
	owed     bool      // a report is due, and waits for the answer
	reported time.Time // last
}

// look says what to do: ask the rank, and report what it answered. stallAfter is negative where
// nothing is reported.
func (p *patience) look(now time.Time, stallAfter time.Duration) (ask, report bool) {
	waited, first := now.Sub(p.since), askAfter
	if stallAfter >= 0 {
		first = min(first, stallAfter)
	}
	if waited < first {
		return false, false
	}
	ask = p.asked.IsZero() || !p.owed && now.Sub(p.asked) >= max(askAfter, p.asked.Sub(p.since)) // it may go wrong only later
	if stallAfter >= 0 && !p.owed && waited >= stallAfter && now.Sub(p.reported) >= stallAfter {
		ask, p.owed = true, true
	}
	if ask {
		p.asked, p.answer = now, ""
		p.asks++
	}
	if p.owed && (p.mute || p.answer != "" || now.Sub(p.asked) >= askAfter) {
		p.owed, p.reported, report = false, now, true
	}
	return ask, report
}

// whomToAsk is the rank that is waited for or, where nobody knows which that is, one of the others in turn.
func (s *state) whomToAsk(g glimpse, p patience) int {
	if !g.inLibrary {
		return g.peer
	}
	return (s.rank + 1 + (p.asks-1)%(s.size-1)) % s.size
}

// answered notes an answer, if it is still of interest.
func (w *watch) answered(q question, text string) {
	if p, ok := w.patience[q]; ok {
		p.answer = text
		w.patience[q] = p
	}
}

// inspect looks at what is under way and reports whether anything is.
func (s *state) inspect(c *mpi.Comm) bool {
	w := &s.watch
	w.seen = w.seen[:0]
	s.mu.Lock()
	for _, x := range w.active {
		x.mu.Lock()
		g := glimpse{seq: x.seq, signature: x.signature, progress: x.progress.Load(), peer: int(x.peer)}
		g.inLibrary = x.entry.way == byLibrary && g.peer == nobody
		if g.peer >= 0 {
			g.exchange = x.entry.exchanges().with(g.peer)
		}
		w.seen = append(w.seen, g)
		x.mu.Unlock()
	}
	stallAfter, log := s.config.stallAfter(), s.config.Log
	s.mu.Unlock()
	now := time.Now()
	for _, g := range w.seen {
		if g.peer < 0 && !g.inLibrary {
			continue
		}
		q := question{g.seq, g.peer}
		p, ok := w.patience[q]
		if !ok || p.progress != g.progress {
			p = patience{progress: g.progress, mute: g.inLibrary, since: now}
		}
		p.seen = now
		ask, report := p.look(now, stallAfter)
		w.patience[q] = p
		if ask {
			s.post(c.Shadow(), news{kind: newsQuery, seq: g.seq, signature: g.signature, exchange: g.exchange}, s.whomToAsk(g, p))
		}
		if report && log != nil {
			log.Warn(fmt.Sprintf("%s #%d on %s waits for %s", g.signature.kind(), g.seq, s.name, s.whom(c, g, p, now)))
		}
	}
	for q, p := range w.patience {
		if !p.seen.Equal(now) {
			delete(w.patience, q)
		}
	}
	return len(w.seen) > 0
}

// whom says for whom an execution waits since when, and what that rank does.
func (s *state) whom(c *mpi.Comm, g glimpse, p patience, now time.Time) string {
	since := fmt.Sprintf("since %.1f s; ", now.Sub(p.since).Seconds())
	if g.inLibrary {
		return "the system's MPI library " + since + "it does not say for which ranks that waits"
	}
	answer := p.answer
	if answer == "" {
		answer = "it does not answer"
	}
	missing := s.missing(c, g)
	if len(missing) > 1 {
		answer = fmt.Sprintf("of rank %d: %s", g.peer, answer)
	}
	return nameRanks(c, missing) + " " + since + answer
}
