package mpi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// Frames of the bootstrap connection.
const (
	frameCard    byte = 1
	frameWelcome byte = 2
	frameRefusal byte = 3
	frameFinding byte = 4
	frameVerdict byte = 5
)

// welcome tells a rank where its place in the tree is.
type welcome struct {
	Parent int    // rank
	Tree   string // its tree listener
	Hash   [32]byte
}

// refusal tells a rank why there will be no world.
type refusal struct {
	Text string
	Why  string // the text of the sentinel among refusals, "" if it is none of them
}

// refusals are the sentinels that a refusal carries to the other ranks, so that errors.Is finds them there as at position 0.
var refusals = []error{ErrLayout, ErrStartTimeout, ErrTransport, ErrLauncher}

func refuse(err error) refusal {
	r := refusal{Text: err.Error()}
	for _, why := range refusals {
		if errors.Is(err, why) {
			r.Why = why.Error()
		}
	}
	return r
}

func (r *refusal) err() error {
	e := &refusedError{text: r.Text}
	for _, why := range refusals {
		if r.Why == why.Error() {
			e.err = why
		}
	}
	return e
}

// refusedError has the words of position 0, and its sentinel.
type refusedError struct {
	text string
	err  error // or nil
}

func (e *refusedError) Error() string { return e.text }
func (e *refusedError) Unwrap() error { return e.err }

// agree makes this rank part of the world: it blocks until all ranks have
// met and agree on the layout. addresses are what this rank's transports
// published, by name. The tree that it returns is the caller's to close; the
// meeting is over either way.
func (m *meeting) agree(ctx context.Context, addresses map[string][]byte) (*tree, *roster, error) {
	caller := ctx
	ctx, cancel := context.WithDeadlineCause(ctx, m.deadline, startTimeout(m.cfg.startTimeout()))
	defer cancel()
	t, err := openTree(ctx, m)
	if err != nil {
		m.giveUp(ctx, err)
		return nil, nil, err
	}
	own := card{
		Protocol: protocolVersion, Rank: m.l.rank, Size: m.l.size, Node: m.l.node, Local: m.l.local,
		Host: m.l.host, Processors: processors(), Tree: t.address(), Addresses: addresses, Layout: m.cfg.Layout,
	}
	switch {
	case m.l.size == 1:
		err = m.singleRank(t, own)
	case m.door != nil:
		err = m.collectCards(ctx, t, own)
	default:
		err = m.sendCard(caller, t, own)
	}
	if err == nil {
		err = m.leaveManager(ctx)
	}
	m.close()
	if err != nil {
		t.Close()
		return nil, nil, err
	}
	return t, t.roster, nil
}

func (m *meeting) singleRank(t *tree, own card) error {
	r, err := newRoster([]card{own})
	if err == nil {
		t.adopt(r)
	}
	return err
}

// enter takes a rank that came to position 0, on a goroutine of the door's.
func (m *meeting) enter(conn net.Conn, p wire.Peer) { go m.hear(p.Rank, conn) }

// hear takes what a rank tells position 0 next: what it has found, its card, or why it goes no further.
func (m *meeting) hear(rank int, conn net.Conn) {
	j := joiner{rank: rank, conn: conn}
	j.err = conn.SetDeadline(m.deadline.Add(time.Second))
	var body []byte
	if j.err == nil {
		j.kind, body, j.err = wire.ReadFrame(conn, nil, maxCardBytes)
	}
	said := rank
	if j.err == nil {
		switch j.kind {
		case frameCard:
			j.card, j.err = decodeJSON[card](body)
			said = j.card.Rank
		case frameFinding:
			j.finding, j.err = decodeJSON[finding](body)
			said = j.finding.Rank
		case frameRefusal:
			j.refusal, j.err = decodeJSON[refusal](body)
		default:
			j.err = fmt.Errorf("malformed card: frame %d", j.kind)
		}
	}
	if j.err == nil && said != rank {
		j.err = fmt.Errorf("malformed card: rank %d from rank %d", said, rank)
	}
	select {
	case m.joiners <- j:
		select {
		case <-m.done: // nobody takes it any more, and close may have dismissed the others before this one came
			m.dismiss()
		default:
		}
	case <-m.done:
		conn.Close()
	}
}

// dismiss closes the connections of ranks that have come and that nobody has taken.
func (m *meeting) dismiss() {
	for {
		select {
		case j := <-m.joiners:
			j.conn.Close()
		default:
			return
		}
	}
}

// refusalWait is how long position 0, once it knows that there will be no world, waits for the ranks that have not
// come yet, to tell them: they would look for it in vain until StartTimeout.
const refusalWait = 5 * time.Second

// collect waits at position 0 until every other rank has sent a frame of the given kind. Once there will be no world,
// because of err or of what a rank says, it waits for the rest only so that the caller can tell them, and only for refusalWait.
func (m *meeting) collect(ctx context.Context, kind byte, err error) (map[int]joiner, error) {
	came := map[int]joiner{}
	broke := map[int]error{}    // why ranks that came broke off; one that came again since is in came, too
	var enough <-chan time.Time // once there is an err
	for len(came) < m.l.size-1 {
		if err != nil && enough == nil {
			enough = time.After(refusalWait)
		}
		select {
		case j := <-m.joiners:
			if j.err != nil {
				m.cfg.log().Warn("a rank came and broke off", "rank", j.rank, "reason", j.err)
				j.conn.Close()
				broke[j.rank] = j.err
				continue
			}
			if before, twice := came[j.rank]; twice { // it lost its first connection
				before.conn.Close()
			}
			came[j.rank] = j
			switch {
			case err != nil:
			case j.kind == frameRefusal:
				err = j.refusal.err()
			case j.kind != kind:
				err = fmt.Errorf("mpi: %w: ranks %d and %d have been told different things of the transport to use "+
					"(Config.Transport, InfiniBand, OutlivesRanks), or by different launchers", ErrLayout, m.l.rank, j.rank)
			}
		case <-enough:
			return came, err
		case <-ctx.Done():
			if err == nil {
				err = m.missing(ctx, came, broke)
			}
			return came, err
		}
	}
	return came, err
}

// giveUp ends the meeting of a rank that cannot go on, and tells the others why: they would wait for it until StartTimeout.
func (m *meeting) giveUp(ctx context.Context, err error) {
	m.breakOff(ctx, err)
	m.close()
}

// breakOff tells the others why this rank goes no further.
func (m *meeting) breakOff(ctx context.Context, err error) {
	err = fmt.Errorf("mpi: rank %d on %s came and broke off: %w", m.l.rank, m.l.host, err)
	switch {
	case m.door != nil:
		came, _ := m.collect(ctx, frameCard, err)
		turnAway(came, err)
	case m.conn != nil:
		m.conn.SetDeadline(time.Now().Add(time.Second))
		m.conn.Write(wire.AppendFrame(nil, frameRefusal, encodeJSON(refuse(err)))) // else position 0 finds the connection closed
	}
}

// turnAway tells ranks why there will be no world.
func turnAway(came map[int]joiner, why error) {
	no := wire.AppendFrame(nil, frameRefusal, encodeJSON(refuse(why)))
	for _, j := range came {
		j.conn.SetDeadline(time.Now().Add(time.Second))
		j.conn.Write(no) // a rank that does not hear it finds the connection closed
		j.conn.Close()
	}
}

// collectCards is position 0's part: it waits for every rank, compares, and
// answers each.
func (m *meeting) collectCards(ctx context.Context, t *tree, own card) error {
	came, err := m.collect(ctx, frameCard, nil)
	var r *roster
	if err == nil {
		cards := []card{own}
		for _, j := range came {
			cards = append(cards, j.card)
		}
		r, err = newRoster(cards)
	}
	if err != nil {
		turnAway(came, err)
		return err
	}
	t.adopt(r)
	for rank, j := range came {
		parent := t.parentOf(rank)
		yes := encodeJSON(welcome{Parent: parent, Tree: r.Seats[parent].Tree, Hash: r.Hash})
		j.conn.SetDeadline(m.deadline.Add(time.Second))
		if _, err := j.conn.Write(wire.AppendFrame(nil, frameWelcome, yes)); err != nil {
			t.AnnounceLost(rank, fmt.Sprintf("it left while the ranks met: %v", err))
		}
		j.conn.Close()
	}
	return nil
}

// missing names the ranks that have not come in time, and those that came and broke off.
func (m *meeting) missing(ctx context.Context, came map[int]joiner, broke map[int]error) error {
	var absent []int
	var missed []string
	for rank := range m.l.size {
		if _, ok := came[rank]; ok || rank == m.l.rank {
			continue
		}
		if why, ok := broke[rank]; ok {
			missed = append(missed, fmt.Sprintf("rank %d came and broke off (%v)", rank, why))
		} else {
			absent = append(absent, rank)
		}
	}
	if len(absent) > 0 {
		missed = append([]string{rankList(absent) + " did not come"}, missed...)
	}
	return fmt.Errorf("mpi: waited for %d ranks on %s, %s: %w", m.l.size, m.place, strings.Join(missed, ", "), context.Cause(ctx))
}

// sendCard is the part of every other rank.
func (m *meeting) sendCard(ctx context.Context, t *tree, own card) error {
	body, err := m.ask(ctx, frameCard, encodeJSON(own), frameWelcome)
	if err != nil {
		return err
	}
	yes, err := decodeJSON[welcome](body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadlineCause(ctx, m.deadline.Add(time.Second), startTimeout(m.cfg.startTimeout()))
	defer cancel()
	return t.join(ctx, yes)
}

// ask tells position 0 something and returns its answer, which is of kind want. A refusal is an error
// with its reason.
func (m *meeting) ask(ctx context.Context, kind byte, body []byte, want byte) ([]byte, error) {
	defer wire.CloseOnEnd(ctx, m.conn)()
	// At its own deadline position 0 says which ranks are missing. This one waits a moment longer, to hear it.
	if err := m.conn.SetDeadline(m.deadline.Add(time.Second)); err != nil {
		return nil, err
	}
	if _, err := m.conn.Write(wire.AppendFrame(nil, kind, body)); err != nil {
		return nil, fmt.Errorf("mpi: position 0 (rank %d) left while the ranks met: %w", m.zeroRank, err)
	}
	kind, answer, err := wire.ReadFrame(m.conn, nil, maxCardBytes)
	if err != nil {
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("mpi: position 0 (rank %d) did not answer in time: %w", m.zeroRank, context.Cause(ctx))
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("mpi: position 0 (rank %d) did not answer: %w", m.zeroRank, startTimeout(m.cfg.startTimeout()))
		}
		return nil, fmt.Errorf("mpi: position 0 (rank %d) left while the ranks met: %w", m.zeroRank, err)
	}
	switch kind {
	case want:
		return answer, nil
	case frameRefusal:
		no, err := decodeJSON[refusal](answer)
		if err != nil {
			return nil, err
		}
		return nil, no.err()
	}
	return nil, fmt.Errorf("mpi: malformed answer of position 0: frame %d", kind)
}
