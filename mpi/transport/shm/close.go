package shm

import (
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// closeTimeout bounds how long Close waits for what this rank has accepted to
// leave, and for peers to let go of its memory.
const closeTimeout = time.Second

// Close ends the provider. Payloads still being sent leave first, and peers
// finish the copies they are at; both within a second. A peer that is stopped
// in the middle of a copy is left behind: what this process does with the
// memory afterwards is its own risk, which ends with the process.
func (p *Provider) Close() error {
	p.meetings.mu.Lock()
	if p.meetings.closed {
		p.meetings.mu.Unlock()
		return nil
	}
	p.meetings.closed = true
	p.meetings.mu.Unlock()

	deadline := time.Now().Add(closeTimeout)
	p.flush(deadline)
	p.cancel()
	if p.listener != nil {
		p.listener.Close()
	}
	if p.presence >= 0 {
		unix.Close(p.presence)
	}
	p.conns.Range(func(conn, _ any) bool {
		conn.(*net.UnixConn).Close()
		return true
	})
	p.copying.Wait() // each is short
	for _, ep := range p.live {
		p.closePulls(ep, errClosed)
		ep.closeExposures()
	}
	p.waitUntil(deadline, func() bool {
		p.settle()
		for _, ep := range p.peers { // also those that are leaving, whose copies go on
			if ep != nil && ep.link != nil && !ep.quiet() {
				return false
			}
		}
		return true
	})
	p.meetings.mu.Lock()
	for _, t := range p.meetings.byRank {
		if t.link != nil {
			t.link.conn.Close()
		}
	}
	p.meetings.mu.Unlock()
	p.running.Wait()
	p.meetings.mu.Lock()
	for _, t := range p.meetings.byRank {
		if t.link != nil {
			t.link.close()
			t.link, t.err = nil, errClosed
		}
	}
	p.meetings.mu.Unlock()
	for _, ep := range p.peers {
		if ep != nil {
			ep.state, ep.link, ep.exposures = gone, nil, nil
		}
	}
	p.live, p.ailing, p.pulls, p.helps, p.awaited, p.dones, p.streams = nil, nil, nil, nil, nil, nil, 0
	p.hot, p.hotCount = [hotPeers]*endpoint{}, 0
	p.exports.close()
	if p.bell != nil {
		if p.cfg.Set != nil {
			p.cfg.Set.Unwatch(p.bell.bell)
		}
		p.bell.close()
	}
	return nil
}

// flush sends the rest of all streams, until the deadline.
func (p *Provider) flush(deadline time.Time) {
	p.waitUntil(deadline, func() bool {
		for _, ep := range p.live {
			if len(ep.out.streams) > 0 && !ep.hungup {
				ep.push()
			}
		}
		p.hear()
		return !slices.ContainsFunc(p.live, func(ep *endpoint) bool { return len(ep.out.streams) > 0 && !ep.hungup })
	})
}

// waitUntil tries until done or the deadline, asleep between the attempts.
func (p *Provider) waitUntil(deadline time.Time, done func() bool) {
	if p.bell == nil {
		return
	}
	for !done() && time.Now().Before(deadline) {
		p.bell.arm(p.polls)
		p.bell.asleep = true
		fds := []unix.PollFd{{Fd: int32(p.bell.bell), Events: unix.POLLIN}}
		unix.Poll(fds, 1) // ms: not every step rings
		p.bell.disarm()
	}
}
