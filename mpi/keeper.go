package mpi

import (
	"sync"
	"time"
)

// keeper makes progress while no caller waits, so that rendezvous, windows
// and goodbyes advance while the program computes. It must not disturb a program that
// communicates: as long as calls come, it only looks in every keeperTick, and polls for messages
// only if the calls have not. Once calls have stopped, it sleeps on the world's set like a leader. A caller
// that wants to wait then takes the lead at once, without waiting until the keeper is awake.
type keeper struct {
	waiting bool // for the leader to leave
	asleep  bool // in the kernel, perhaps not as the leader any more
	leave   chan struct{}
	done    sync.WaitGroup
}

const (
	keeperTick = 2 * time.Millisecond
	// Where ranks share processors, each look takes a processor away from a rank, for two switches and more.
	crowdedTick = 16 * time.Millisecond
)

// release tells the keeper that no caller leads any more.
func (k *keeper) release() {
	if k.waiting {
		k.waiting = false
		k.leave <- struct{}{}
	}
}

func (e *engine) startKeeper() {
	e.keeper.leave = make(chan struct{}, 1)
	e.keeper.done.Add(1)
	go func() {
		defer e.keeper.done.Done()
		e.keep()
	}()
}

func (e *engine) keep() {
	var seen uint64
	e.mu.Lock()
	defer e.mu.Unlock()
	for !e.closed {
		now := e.activity()
		switch {
		case now != seen && e.sleeper == nil && (e.watched == 0 || e.leader != leaderNone):
			seen = now
			polls, sweeps := e.polls, e.sweeps
			e.tick()
			if e.polls == polls && e.sweeps == sweeps {
				// None of the calls polled: they used memory in reach, or were sends that left at once.
				e.pollOnce()
			}
		case e.leader != leaderNone: // a caller that waits for long
			e.keepOut()
		default:
			seen = now
			e.leader = leaderKeeper
			for !e.closed && len(e.reported) == 0 && e.pollAll() > 0 {
				if e.mu.Wanted() {
					e.stepAside()
				}
			}
			if len(e.parked) == 0 {
				e.keepAsleep()
			}
			if e.leader == leaderKeeper {
				e.pollAll()
				e.leader = leaderNone
				e.handOver()
				if len(e.parked) > 0 { // the caller that handOver has signalled is to lead
					e.keepOut()
				}
			}
		}
	}
}

// keepOut blocks the keeper until no caller leads or is about to. Yielding instead would not do: where the program has
// only one processor, the keeper would take it from the caller, who needs it.
func (e *engine) keepOut() {
	e.keeper.waiting = true
	e.mu.Unlock()
	<-e.keeper.leave
	e.mu.Lock()
}

// tick pauses with the lock released. It does not pause in a system call: Go's monitor would have to take the processor
// back from the call each time, which keeps the monitor awake, and a monitor that is awake takes a tenth of the core from
// a program that polls. While somebody else has the lock, the program communicates, and tick pauses again rather than
// hold it up by waiting for the lock.
func (e *engine) tick() {
	pause := keeperTick
	if e.crowded {
		pause = crowdedTick
	}
	e.mu.Unlock()
	time.Sleep(pause)
	for !e.mu.TryLock() {
		time.Sleep(pause)
	}
}

// keepAsleep sleeps until something arrives. On return the keeper still leads,
// awake, unless a caller has taken over.
func (e *engine) keepAsleep() {
	if e.sleeper != nil {
		e.leader, e.asleep = leaderAsleep, true
		e.sleeper.Sleep(&e.mu, time.Time{})
		e.leader, e.asleep = leaderKeeper, false
		return
	}
	if !e.arm() {
		e.disarm()
		if e.mu.Wanted() { // what has arrived may be for later
			e.stepAside()
		}
		return
	}
	e.leader, e.asleep, e.keeper.asleep = leaderAsleep, true, true
	e.mu.Unlock()
	e.set.wait(-1)
	e.mu.Lock()
	e.keeper.asleep = false
	switch {
	case e.leader == leaderAsleep:
		e.leader, e.asleep = leaderKeeper, false
		e.disarm()
	case e.asleep:
		e.set.ring() // the ring that woke the keeper may have been for the caller that leads now
	}
}
