package mpi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// dialWait bounds one attempt to connect: a port that a firewall swallows must
// not keep a rank from trying the others.
const dialWait = 2 * time.Second

// headStart is how long a place that does not answer is tried alone, before the next place is tried, too.
const headStart = 100 * time.Millisecond

// found is what came of looking for position 0 at one place.
type found struct {
	place  int      // its index
	conn   net.Conn // authenticated; nil if there was none in time
	zero   int      // rank of position 0
	secret []byte   // of the job
	err    error    // the last reason why there is no conn
}

// join finds position 0. Until the deadline it tries each place where position 0 may listen, again and again, since
// position 0 may be started later, and passes over strangers. A place that keeps silent does not hold up the others.
func (m *meeting) join(ctx context.Context, k *keyring) error {
	targets, err := m.targets(ctx)
	if err != nil {
		return err
	}
	looking, stop := context.WithCancel(ctx)
	defer stop()
	results := make(chan found, len(targets))
	turn := make(chan struct{})
	close(turn)
	for i, target := range targets {
		mine, next := turn, make(chan struct{})
		turn = next
		go func() {
			f := found{err: errNotTried}
			select {
			case <-mine:
				f = m.look(looking, target, k, sync.OnceFunc(func() { close(next) }))
			case <-looking.Done():
			}
			f.place = i
			results <- f
		}()
	}
	var at found
	var refused error
	last := make([]error, len(targets))
	for range targets {
		f := <-results
		last[f.place] = f.err
		switch {
		case f.conn == nil && !errors.Is(f.err, wire.ErrRefused):
		case f.conn == nil: // refused by a rank of this job: trying again will not help
			refused = fmt.Errorf("mpi: rank %d was refused by position 0 at %s: %w", m.l.rank, targets[f.place], f.err)
			stop()
		case at.conn != nil:
			f.conn.Close()
		default:
			at = f
			stop()
		}
	}
	switch {
	case at.conn != nil:
		m.conn, m.zeroRank, m.secret = at.conn, at.zero, at.secret
		return nil
	case refused != nil:
		return refused
	}
	return m.notFound(ctx, targets, last)
}

var errNotTried = errors.New("not tried")

// look looks for position 0 at one place until it is found there, refuses this rank, or ctx ends. If it is not found at
// once, look calls next, and the next place has its turn.
func (m *meeting) look(ctx context.Context, target string, k *keyring, next func()) found {
	defer time.AfterFunc(headStart, next).Stop()
	var last error
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		f := m.try(ctx, target, k)
		if f.err == nil || errors.Is(f.err, wire.ErrRefused) {
			return f
		}
		next()
		last = reason(last, f.err)
		if !waited(ctx, pause) {
			return found{err: last}
		}
	}
}

// reason is the error to report of a place that was tried again: the newer one, unless that only says that time ran out,
// which tells less than any answer before.
func reason(before, now error) error {
	var e net.Error
	ranOut := errors.Is(now, context.DeadlineExceeded) || errors.Is(now, context.Canceled) ||
		errors.As(now, &e) && e.Timeout()
	if before != nil && ranOut {
		return before
	}
	return now
}

// targets are the places where position 0 may listen.
func (m *meeting) targets(ctx context.Context) ([]string, error) {
	switch {
	case m.zeroAddress != "":
		return []string{m.zeroAddress}, nil
	case m.l.root != "":
		return []string{m.l.root}, nil
	}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		address, err := zeroHostAddress(ctx, m.l)
		if err == nil {
			var targets []string
			for _, port := range m.l.rendezvousPorts() {
				targets = append(targets, netip.AddrPortFrom(address, uint16(port)).String())
			}
			return targets, nil
		}
		if !waited(ctx, pause) { // a name server may need a moment
			return nil, fmt.Errorf("mpi: %w: %w", err, context.Cause(ctx))
		}
	}
}

func (m *meeting) notFound(ctx context.Context, targets []string, last []error) error {
	reasons := map[string][]string{}
	var order []string
	for i, err := range last {
		text := strings.TrimPrefix(err.Error(), "dial tcp "+targets[i]+": ")
		if _, ok := reasons[text]; !ok {
			order = append(order, text)
		}
		reasons[text] = append(reasons[text], targets[i])
	}
	var parts []string
	for _, text := range order {
		at := reasons[text]
		where := at[0]
		if len(at) > 1 {
			where = fmt.Sprintf("%s and %d more", at[0], len(at)-1)
		}
		parts = append(parts, where+": "+text)
	}
	return fmt.Errorf("mpi: rank %d on %s did not find position 0 (keys: %s): %s: %w",
		m.l.rank, m.l.host, m.keys, strings.Join(parts, "; "), context.Cause(ctx))
}

// try makes one attempt at one place.
func (m *meeting) try(ctx context.Context, target string, k *keyring) (f found) {
	attempt, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	dialer := net.Dialer{}
	conn, err := dialer.DialContext(attempt, "tcp", target)
	if err != nil {
		return found{err: err}
	}
	deadline := time.Now().Add(2 * dialWait)
	stop := wire.CloseOnEnd(ctx, conn)
	secret := m.secret
	if k != nil && k.exchange != nil {
		secret, err = k.exchange.take(ctx, conn, deadline)
	} else if k != nil {
		secret, err = k.file.read() // at every attempt anew: at first an older file may be there
	}
	var peer wire.Peer
	if err == nil {
		self := m.self([32]byte{})
		self.Secret = secret
		peer, err = wire.Greet(conn, &self, wire.Bootstrap, wire.Anyone, deadline)
	}
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return found{err: err}
	}
	return found{conn: conn, zero: peer.Rank, secret: secret}
}
