package mpi

import (
	"context"
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// attach makes the library's communicators for c and its shadow. The
// members meet in it.
func (d *nativeDevice) attach(ctx context.Context, c *Comm) error {
	user, shadow := d.user, d.shadow
	if c != c.world.comm {
		ranks := worldRanks(c.group)
		var err error
		if user, err = d.lib.CreateGroup(ctx, c.name, ranks, int(c.context)); err == nil {
			if shadow, err = d.lib.CreateGroup(ctx, c.name+" shadow", ranks, int(c.shadow.context)); err != nil {
				_ = user.Free() // the first error tells more
			}
		}
		if err != nil {
			return d.failure(c, "create", ProcNull, AnyTag, err)
		}
	}
	c.native, c.shadow.native = user, shadow
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.comms == nil { // the world has closed meanwhile
		return d.failure(c, "create", ProcNull, AnyTag, ErrClosed)
	}
	d.comms[c] = struct{}{}
	return nil
}

func (d *nativeDevice) forgo(group []int32, context uint32) {
	d.lib.LeaveGroup(worldRanks(group), int(context)) // not the shadow's, which comes later: nobody will get that far
}

func worldRanks(group []int32) []int {
	ranks := make([]int, len(group))
	for i, r := range group {
		ranks[i] = int(r)
	}
	return ranks
}

// detach frees the library's communicators. The standard has all members do
// so together; the libraries do not wait for each other.
func (d *nativeDevice) detach(c *Comm) {
	d.mu.Lock()
	delete(d.comms, c)
	d.mu.Unlock()
	for _, m := range []*Comm{c, c.shadow} {
		if err := m.native.(*native.Comm).Free(); err != nil {
			d.log.Warn("communicator not freed", "comm", c.name, "error", err)
		}
	}
}

func (d *nativeDevice) nextContext() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.context
}

func (d *nativeDevice) claimContext(id uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if id < d.context {
		return false
	}
	d.context = id + contextStep
	return true
}

// revoke is local: MPI-3 cannot tell the other members. New operations fail
// and posted receives end; a blocking Recv or a send under way goes on.
func (d *nativeDevice) revoke(c *Comm) {
	for _, m := range []*Comm{c, c.shadow} {
		m.revoked.Store(true)
		d.revokePending(m)
	}
}

// lost and acknowledge: MPI names nobody.
func (d *nativeDevice) lost(*Comm) []int        { return nil }
func (d *nativeDevice) acknowledge(*Comm) []int { return nil }

func newNativeDevice(ctx context.Context, lib *native.World, host *hostMemory, cfg *Config) (*nativeDevice, error) {
	l := lib.Library()
	d := &nativeDevice{lib: lib, host: host, name: l.String(), from: fmt.Sprintf("%s: %s", l.Path, l.Why), log: cfg.log(), tags: newNativeTags(lib.Caps().MaxTag), comms: map[*Comm]struct{}{}, closing: make(chan struct{})}
	var err error
	if d.user, err = lib.Comm().Dup(ctx, "world"); err != nil {
		return nil, err
	}
	if d.shadow, err = lib.Comm().Dup(ctx, "world shadow"); err != nil {
		return nil, err
	}
	return d, nil
}
