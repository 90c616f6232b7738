package mpi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Comm is a communicator: an ordered group of ranks with a message space of
// its own. Messages sent on one communicator are never received on another. All
// methods may be called from any goroutine; those that take a context are collective unless
// they say otherwise: every member calls them, in the same order.
//
// If Dup, Split, Node, NewWindow, Window.Fence, Window.Free or AllocShared fails on one member, members that still wait for it
// get ErrCancelled. Members that had heard from it already may have succeeded. So exchange the outcomes before you retry; a
// retry must be made by all members, also by those that succeeded.
type Comm struct {
	dev   device
	world *World
	name  string
	rank  int
	group []int32 // rank in this communicator -> world rank
	where map[int32]int32
	// identity: rank == world rank for all members (where is nil then)
	identity bool

	context uint32
	shadow  *Comm // library traffic; its own shadow is itself
	native  any   // the native device's communicator

	attributes atomic.Pointer[attribute]
	released   atomic.Bool   // what libraries keep with it and with its shadow
	calls      atomic.Uint64 // collective calls of this package so far, on the shadow

	revoked atomic.Bool
	freed   atomic.Bool
	unacked int // losses of members not acknowledged, guarded by the device's lock

	mu       sync.Mutex
	children int
	shrinks  uint32 // calls of Shrink so far
}

// Context ids come in pairs: even for the user's messages, odd for the
// library's own on the same group.
const contextStep = 2

func newComm(w *World, dev device, name string, rank int, group []int32, context uint32) *Comm {
	c := &Comm{dev: dev, world: w, name: name, rank: rank, group: group, context: context}
	c.identity = true
	for i, r := range group {
		if int(r) != i {
			c.identity = false
			break
		}
	}
	if !c.identity {
		c.where = make(map[int32]int32, len(group))
		for i, r := range group {
			c.where[r] = int32(i)
		}
	}
	s := &Comm{dev: dev, world: w, name: name, rank: rank, group: group, where: c.where, identity: c.identity, context: context + 1}
	s.shadow = s
	c.shadow = s
	return c
}

// Rank is this process's rank in the communicator.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return len(c.group) }

// Name is what errors call the communicator: "world", "world.dup1", ...
func (c *Comm) Name() string { return c.name }

// World is the world the communicator belongs to.
func (c *Comm) World() *World { return c.world }

// WorldRank translates a rank of this communicator.
func (c *Comm) WorldRank(rank int) int { return int(c.group[rank]) }

// RankOf translates a world rank; -1 if it is no member.
func (c *Comm) RankOf(worldRank int) int {
	if c.identity {
		if worldRank < 0 || worldRank >= len(c.group) {
			return -1
		}
		return worldRank
	}
	if r, ok := c.where[int32(worldRank)]; ok && int(int32(worldRank)) == worldRank {
		return int(r)
	}
	return -1
}

// Host is the name of the host on which a rank runs.
func (c *Comm) Host(rank int) string { return c.world.Host(int(c.group[rank])) }

// Transport says how messages to a rank travel, and why that way.
func (c *Comm) Transport(rank int) (name, reason string) {
	return c.dev.transport(int(c.group[rank]))
}

// Networked reports whether a rank is reached over the network even by the ranks of
// its host, as with Config.Transport "tcp". All ranks get the same answer. Not collective.
func (c *Comm) Networked(rank int) bool {
	at := c.world.members[c.group[rank]].Addresses
	_, network := at["tcp"]
	_, memory := at["shm"]
	return network && !memory
}

// Caps says what the device under the communicator can do.
func (c *Comm) Caps() DeviceCaps { return c.dev.caps() }

// Progress is for a rank that waits for others by looking at memory they share. It lets the system's MPI library work, once
// and without waiting, on the operations under way, and reports whether there are any. Fisterra's own transports need no
// such help: there it does nothing. Not collective.
func (c *Comm) Progress() (busy bool) {
	d, ok := c.dev.(*nativeDevice)
	return ok && d.progress()
}

// Shadow returns the communicator's twin for library traffic: the same
// ranks, a message space of its own, so that a library's messages never match the
// user's receives. It lives as long as the communicator: Free on it does nothing. Not collective; always the same value.
func (c *Comm) Shadow() *Comm { return c.shadow }

// Free gives the communicator back, with what libraries keep with it. No operation may be under
// way on it here; other members may still be in theirs. Later operations are ErrClosed. The
// world's own communicator stays until Close. All members call Free, but do not wait for each other.
// Messages from members that have not been received here are dropped: at their senders, large ones end with ErrClosed.
func (c *Comm) Free() {
	if c == c.world.comm || c == c.shadow || c.freed.Swap(true) {
		return
	}
	c.shadow.freed.Store(true)
	c.release(errFreed)
	c.dev.detach(c)
}

// Revoke ends all communication on the communicator, on all its members: pending and
// later operations fail with ErrRevoked everywhere; Shrink still works. Not collective;
// one rank suffices. Over the system's MPI library only this member hears of it. (Bland et al., "Post-failure recovery of
// MPI communication capability", 2013.)
func (c *Comm) Revoke() { c.dev.revoke(c) }

// Lost lists the members that are known to be lost, as ranks of this
// communicator. Not collective: ranks may differ until they agree by Shrink.
func (c *Comm) Lost() []int { return c.dev.lost(c) }

// AckLost acknowledges the losses known so far, so that AnySource receives on this communicator no longer fail because
// of them. Its collectives fail all the same: only a communicator made by Shrink has collectives again. AckLost returns
// what Lost does. Not collective.
func (c *Comm) AckLost() []int { return c.dev.acknowledge(c) }

func (c *Comm) String() string {
	return fmt.Sprintf("%s (rank %d of %d)", c.name, c.rank, len(c.group))
}

func (c *Comm) childName(kind string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.children++
	return fmt.Sprintf("%s.%s%d", c.name, kind, c.children)
}

func (c *Comm) fail(what string, peer, tag int, err error, detail string) error {
	e := &Error{Op: what, Comm: c.name, Rank: c.rank, Peer: peer, Tag: tag, Err: err, Detail: detail}
	if peer >= 0 && peer < len(c.group) {
		e.Host = c.Host(peer)
	}
	return e
}

func (c *Comm) rankRange(rank int) string {
	return fmt.Sprintf("rank %d, ranks run from 0 to %d", rank, len(c.group)-1)
}

func tagRange(tag int) string { return fmt.Sprintf("tag %d, tags run from 0 to %d", tag, MaxTag) }

// Dup makes a communicator of the same ranks with its own message space. It blocks until all members have called it.
// Collective; cost 2⌈log₂P⌉ rounds of small messages, more only if several communicators are made at once.
func (c *Comm) Dup(ctx context.Context) (_ *Comm, err error) {
	k := c.beginChild(collectiveDup)
	defer func() { k.end(err) }()
	return k.derive(ctx, c, c.group, c.rank)
}

// derive makes the member's handle of a new communicator.
func (c *Comm) derive(ctx context.Context, name string, group []int32, rank int, id uint32) (*Comm, error) {
	d := newComm(c.world, c.dev, name, rank, group, id)
	if err := c.dev.attach(ctx, d); err != nil {
		return nil, err
	}
	c.bequeath(d)
	return d, nil
}
