package mpi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// dialWait bounds one attempt to connect: a port that a firewall swallows must
// not keep a rank from trying the others.
const dialWait = 2 * time.Second

// join finds position 0: it tries each place where it may listen until the
// deadline, since position 0 may be started later, and passes over strangers.
func (m *meeting) join(ctx context.Context, k *keyring) error {
	targets, err := m.targets(ctx)
	if err != nil {
		return err
	}
	last := make([]error, len(targets))
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		for i, target := range targets {
			err := m.try(ctx, target, k)
			if err == nil {
				return nil
			}
			last[i] = reason(last[i], err)
			if errors.Is(err, wire.ErrRefused) { // of this job, and sure
				return fmt.Errorf("mpi: rank %d was refused by position 0 at %s: %w", m.l.rank, target, err)
			}
		}
		if !waited(ctx, pause) {
			return m.notFound(ctx, targets, last)
		}
	}
}

// reason is what is to be told of a place that was tried again: what came of it
// now, but that time ran out says less than any answer before.
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
		text := "not tried"
		if err != nil {
			text = strings.TrimPrefix(err.Error(), "dial tcp "+targets[i]+": ")
		}
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
func (m *meeting) try(ctx context.Context, target string, k *keyring) error {
	attempt, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	dialer := net.Dialer{}
	conn, err := dialer.DialContext(attempt, "tcp", target)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(2 * dialWait)
	stop := wire.CloseOnEnd(ctx, conn)
	if k != nil && k.exchange != nil {
		m.secret, err = k.exchange.take(ctx, conn, deadline)
	} else if k != nil {
		m.secret, err = k.file.read() // anew each time: what is there first may be an older one
	}
	var peer wire.Peer
	if err == nil {
		self := m.self([32]byte{})
		peer, err = wire.Greet(conn, &self, wire.Bootstrap, wire.Anyone, deadline)
	}
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return err
	}
	m.conn, m.zeroRank = conn, peer.Rank
	return nil
}
