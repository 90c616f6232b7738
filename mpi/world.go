package mpi

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
)

// World is the set of ranks that were started together. A process has as many
// worlds as it opens; there is no global one.
type World struct {
	rank       int
	members    []Member
	localRank  int
	localSize  int
	shares     map[string]float64 // by host, see ranksPerCore
	homes      homes
	launcher   string
	choice     choice
	log        *slog.Logger
	dev        device
	comm       *Comm
	membership Membership
	memory     memory

	mu      sync.Mutex
	closing bool
}

func newWorld(a Assembly, dev device) *World {
	w := &World{rank: a.Rank, members: a.Members, launcher: a.Launcher, log: a.Log, dev: dev, membership: a.Membership}
	for _, m := range a.Members {
		if m.Host == a.Members[a.Rank].Host {
			if m.Rank < a.Rank {
				w.localRank++
			}
			w.localSize++
		}
	}
	w.shares = ranksPerCore(a.Members)
	w.homes = homesOf(a.Members[a.Rank].Host, a.Members)
	return w
}

// adopt makes the world communicator.
func (w *World) adopt(dev device) {
	group := make([]int32, len(w.members))
	for i := range group {
		group[i] = int32(i)
	}
	w.comm = newComm(w, dev, "world", w.rank, group, dev.nextContext())
	dev.claimContext(w.comm.context)
	_ = dev.attach(context.Background(), w.comm) // the world's own attach cannot fail
}

// Comm is the communicator of all ranks, named "world".
func (w *World) Comm() *Comm { return w.comm }

// Rank is this process's rank in the world.
func (w *World) Rank() int { return w.rank }

// Size is the number of ranks.
func (w *World) Size() int { return len(w.members) }

// LocalRank is this process's rank among those of its host.
func (w *World) LocalRank() int { return w.localRank }

// LocalSize is the number of ranks on this host.
func (w *World) LocalSize() int { return w.localSize }

// Host is the name of the host of a world rank.
func (w *World) Host(rank int) string { return w.members[rank].Host }

// Position is where a world rank stands in (node, local id) order, from which
// roles follow. It differs from the rank under cyclic or arbitrary distribution.
func (w *World) Position(rank int) int { return w.members[rank].Position }

// Launcher says who started the ranks: one of the By constants, or "sim" for worlds from Local.
func (w *World) Launcher() string { return w.launcher }

// Choice is the transport that was chosen for the whole world, and why: "auto" (shared
// memory on one host, else TCP), "shm", "tcp" or "mpi". Both are empty for a world that Init has not opened.
func (w *World) Choice() (transport, reason string) { return w.choice.transport, w.choice.reason }

// TransportInfo says how a rank is reached.
type TransportInfo struct {
	Rank   int
	Name   string
	Reason string
	Path   string // how large messages travel, where that depends; empty before the two ranks have met
}

// Transports says for every rank how it is reached and why that way.
func (w *World) Transports() []TransportInfo {
	info := make([]TransportInfo, w.Size())
	for r := range info {
		name, reason := w.dev.transport(r)
		info[r] = TransportInfo{Rank: r, Name: name, Reason: reason}
		if r != w.rank {
			info[r].Path = w.dev.path(r)
		}
	}
	return info
}

// Lost lists the world ranks known to be lost.
func (w *World) Lost() []int { return w.dev.lost(w.comm) }

// noticeLoss is told by the engine, which holds its lock.
func (w *World) noticeLoss(rank int, err *lostError) {
	level := slog.LevelWarn
	if err.why == goneEarly { // mostly a consequence of another loss: each of many ranks would warn of all others
		level = slog.LevelInfo
	}
	w.log.Log(context.Background(), level, "rank lost", "rank", rank, "host", w.Host(rank), "why", err.why)
	switch {
	case w.membership == nil:
	case err.ours:
		w.membership.AnnounceLost(w.rank, fmt.Sprintf("it cannot reach rank %d on %s: %s", rank, w.Host(rank), err.why))
	default:
		w.membership.AnnounceLost(rank, err.why)
	}
}

// PeerLost implements MembershipEvents.
func (w *World) PeerLost(rank int, why string) {
	if e, ok := w.dev.(*engine); ok {
		e.peerLost(rank, why)
	}
}

// Abort tells all ranks that this one ends the job: they see it as lost, with
// the reason. The caller then exits with code. Worlds of [Local] have no membership to tell, and nothing happens.
func (w *World) Abort(code int, reason string) {
	if w.membership != nil {
		w.membership.Abort(code, reason)
	}
}
