package tcp

import "golang.org/x/sys/unix"

// Falling asleep and waking up: what the world's Set watches, and for how long. How an awake rank looks is in poll.go.
//
// A sleeping rank is woken by its connections or, if there are many, by their own epoll set, and by sockets that take more
// again. An awake rank looks for itself, and a message to it costs the kernel a third of a microsecond more while its socket
// is watched. So what is watched when the rank falls asleep stays watched when it wakes, until it has found many messages
// while awake.

// wakeups is what a provider knows of its rank's sleep.
type wakeups struct {
	armed   bool
	watched bool // the Set watches everything
	lively  int  // polls that found something since the rank was asleep
	failed  bool // the log has been told that the Set cannot watch
}

// livelyPolls is how many polls since the rank last slept have to find something to show that it is awake to stay. So many
// are worth the few system calls that end the watching.
const livelyPolls = 64

// Arm implements transport.Provider. It reports true where there is something that only Poll can hand over, or where a
// connection cannot be watched: the rank has to stay awake then.
func (p *Provider) Arm() bool {
	p.wakeups.armed = true
	err := p.watch()
	if err != nil && !p.wakeups.failed {
		p.wakeups.failed = true
		p.log.Warn("a rank that waits cannot sleep, since the kernel does not watch its connections", "rank", p.cfg.Rank, "err", err)
	}
	return err != nil || p.inbox.Load() || len(p.done) > 0 || len(p.losses) > 0
}

// Disarm implements transport.Provider.
func (p *Provider) Disarm() { p.wakeups.armed, p.wakeups.lively = false, 0 }

// watch has the Set watch everything, unless it does.
func (p *Provider) watch() error {
	if p.wakeups.watched {
		return nil
	}
	if p.epoll >= 0 {
		if err := p.cfg.Set.Watch(p.epoll, unix.EPOLLIN); err != nil {
			return err
		}
	}
	if p.epoll < 0 || p.blocked > 0 {
		for _, c := range p.conns {
			if err := c.watch(c.wakes()); err != nil {
				return err
			}
		}
	}
	p.wakeups.watched = true
	return nil
}

// noteLively counts a poll that found something, and ends the watch if they are many.
func (p *Provider) noteLively() {
	w := &p.wakeups
	if w.lively++; w.lively >= livelyPolls && w.watched && !w.armed {
		p.unwatch()
	}
}

// unwatch has the Set watch nothing. It also undoes a watch that failed midway.
func (p *Provider) unwatch() {
	p.wakeups.watched = false
	if p.epoll >= 0 {
		p.cfg.Set.Unwatch(p.epoll)
	}
	if p.epoll < 0 || p.blocked > 0 {
		for _, c := range p.conns {
			_ = c.watch(0) // which does not fail
		}
	}
}

// wakes are the events of its socket for which a connection wakes the rank.
func (c *conn) wakes() (events uint32) {
	if c.p.epoll < 0 {
		events = unix.EPOLLIN
	}
	if c.blocked && c.broken == nil {
		events |= unix.EPOLLOUT
	}
	return events
}

// watch has the Set watch the socket for these events only.
func (c *conn) watch(events uint32) error {
	switch {
	case events == c.watched:
		return nil
	case events == 0:
		c.p.cfg.Set.Unwatch(c.fd)
	default:
		if err := c.p.cfg.Set.Watch(c.fd, events); err != nil {
			return err
		}
	}
	c.watched = events
	return nil
}

// rewatch has the Set watch the socket for what wakes the rank now: for nothing unless the Set watches everything, as it does
// not after a watch that failed.
func (c *conn) rewatch() error {
	if !c.p.wakeups.watched {
		return c.watch(0)
	}
	return c.watch(c.wakes())
}
