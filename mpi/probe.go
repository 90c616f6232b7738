package mpi

import (
	"context"
	"errors"
	"slices"
)

// Looking for a message without receiving it.

// probe waits for a message and leaves it where it is.
func (e *engine) probe(ctx context.Context, c *Comm, src, tag int) (Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	look := &sighting{prober: prober{e: e}, c: c, env: c.envelope(src, tag)}
	if err := e.sight(ctx, look); err != nil {
		return Status{}, c.fail("probe", src, tag, err, "")
	}
	return look.status("probe", src, tag)
}

// recvAlloc receives a message into memory that alloc makes for it. The message is taken out of the queue when it
// is found, under one hold of the lock: no other receive gets it. If its sender takes it back all the same, while its data
// is moving, the next one is looked for.
func (e *engine) recvAlloc(ctx context.Context, c *Comm, src, tag int, alloc func(Status) ([]byte, error)) (Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	look := &sighting{prober: prober{e: e}, c: c, env: c.envelope(src, tag)}
	for {
		if err := e.sight(ctx, look); err != nil {
			return Status{}, c.fail("recv", src, tag, err, "")
		}
		status, err := look.status("recv", src, tag)
		if err != nil {
			return status, err
		}
		buf, err := alloc(status)
		if err != nil {
			return status, c.fail("recv", status.Source, status.Tag, err, "")
		}
		o := e.ops.get()
		o.kind, o.comm, o.buf, o.peer, o.env, o.fitted = opRecv, c, buf, -1, look.env, true
		e.release(look.found)
		e.receive(o, look.found)
		if status, err = e.finishWait(ctx, o); !errors.Is(err, errTakenBack) {
			return status, err
		}
	}
}

// sight waits for a message that can be received. When it returns, the lock has been held ever since the message was found.
func (e *engine) sight(ctx context.Context, look *sighting) error {
	for {
		if err := e.await(ctx, look); err != nil || look.met() {
			return err
		}
	}
}

// iprobe looks once, after making some progress if nothing is there.
func (e *engine) iprobe(c *Comm, src, tag int) (Status, bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	look := &sighting{prober: prober{e: e}, c: c, env: c.envelope(src, tag)}
	if !look.met() {
		e.pollOnce()
	}
	if !look.met() {
		return Status{}, false, nil
	}
	status, err := look.status("probe", src, tag)
	return status, err == nil, err
}

func (c *Comm) envelope(src, tag int) envelope {
	v := envelope{context: c.context, source: AnySource, tag: int32(tag)}
	if src >= 0 {
		v.source = c.group[src]
	}
	return v
}

// sighting is met when a message can be received.
type sighting struct {
	prober
	c     *Comm
	env   envelope
	found *arrival
	err   error
}

func (s *sighting) met() bool {
	s.found = nil
	if s.err = s.e.broken(s.c); s.err != nil {
		return true
	}
	if s.found = s.e.match.find(s.env); s.found != nil {
		return true
	}
	if s.env.source >= 0 {
		if p := s.e.peers[s.env.source]; p != nil {
			s.err = p.lost
		}
	} else if s.c.unacked > 0 {
		s.err = s.e.lastLoss(s.c)
	}
	return s.err != nil
}

// status describes what was found by a call for src and tag.
func (s *sighting) status(what string, src, tag int) (Status, error) {
	if s.err != nil {
		return Status{}, s.c.failBy(what, src, tag, s.err)
	}
	v := s.found.env
	return Status{Source: s.c.RankOf(int(v.source)), Tag: int(v.tag), Bytes: s.found.bytes}, nil
}

// prober is part of each condition that something other than the end of an op can meet: whenever such a thing happens
// (sighted), its waiter is signalled, or woken if it leads.
type prober struct {
	e *engine
	w *waiter
}

func (p *prober) watch(w *waiter) {
	if w != nil {
		p.e.probers = append(p.e.probers, w)
		p.w = w
		return
	}
	if i := slices.Index(p.e.probers, p.w); i >= 0 {
		p.e.probers = slices.Delete(p.e.probers, i, i+1)
	}
}

// sighted has the probers look again: those that are parked, and the leader in case it is a prober.
func (e *engine) sighted() {
	for _, w := range e.probers {
		w.signal()
	}
	e.nudge()
}
