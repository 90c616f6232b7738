package mpi

import (
	"bytes"
	"context"
	"crypto/rand"

	"github.com/fisterra-hpc/fisterra/mpi/native"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
)

// The system's MPI library moves messages, but lends nobody the memory that it shares with other ranks.
// So the ranks of a host meet beside it, as over Fisterra's own transports: package shm maps memory from Alloc
// for them, and sends nothing.

// hostMemory is how this rank maps memory of others of its host.
type hostMemory struct {
	provider *shm.Provider
	reached  []bool // by world rank: all of that rank's host and of this one have found each other
}

const hostSecretBytes = 32

// openHostMemory has the ranks find out who shares memory. All ranks call it. A rank that cannot share any is alone with
// that, and the provider is nil. An error is the library's.
func openHostMemory(ctx context.Context, lib *native.World, cfg *Config) (*hostMemory, error) {
	rank, size := lib.Comm().Rank(), lib.Comm().Size()
	h := &hostMemory{reached: make([]bool, size)}
	if size == 1 {
		return h, nil
	}
	nonce := make([]byte, hostSecretBytes)
	rand.Read(nonce)
	nonces, err := exchangeCards(ctx, lib, nonce)
	if err != nil {
		return nil, err
	}
	h.provider, err = shm.Open(shm.Config{Rank: rank, Size: size, Job: "mpi", Secret: nonces[0], Log: cfg.log(), Copies: 2,
		HandshakeTimeout: cfg.firstContact(shm.UsualTimeout)})
	var own []byte
	if err != nil {
		cfg.log().Warn("this rank shares no memory with others", "err", err)
	} else {
		own = h.provider.Address()
	}
	addresses, err := exchangeCards(ctx, lib, own)
	if err == nil {
		err = h.meet(ctx, lib, addresses)
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// meet looks for the others of this host at their addresses, and hears whether they have found all of theirs.
func (h *hostMemory) meet(ctx context.Context, lib *native.World, addresses [][]byte) error {
	found := []byte{0}
	if h.provider != nil {
		found[0] = 1
		for r, at := range addresses {
			switch {
			case r == lib.Comm().Rank() || len(at) == 0 || !shm.SameHost(h.provider.Address(), at):
			case h.provider.Connect(r, at) == nil:
				h.reached[r] = true
			default:
				found[0] = 0
			}
		}
	}
	all, err := exchangeCards(ctx, lib, found)
	if err != nil {
		return err
	}
	for r := range h.reached {
		h.reached[r] = h.reached[r] && found[0] == 1 && bytes.Equal(all[r], []byte{1})
	}
	return nil
}

func (h *hostMemory) close() {
	if h.provider != nil {
		h.provider.Close()
	}
}

// mapper implements device.
func (d *nativeDevice) mapper() transport.Mapper {
	if d.host.provider == nil {
		return nil
	}
	return d.host.provider
}

// mapperOf implements device.
func (d *nativeDevice) mapperOf(world int) transport.Mapper {
	if !d.host.reached[world] {
		return nil
	}
	return d.host.provider
}
