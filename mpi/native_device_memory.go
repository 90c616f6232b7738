package mpi

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/fisterra-hpc/fisterra/internal/procmem"
	"github.com/fisterra-hpc/fisterra/mpi/native"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
	"github.com/fisterra-hpc/fisterra/mpi/transport/shm"
)

// The system's MPI library moves messages, but does not lend the memory that it shares with other ranks.
// So the ranks of a host also meet without the library, as over Fisterra's own transports: package shm maps memory from
// Alloc for them, and sends nothing. They also find out whether they can read each other's memory.

// hostMemory is how this rank maps memory of others of its host, and reads it.
type hostMemory struct {
	provider *shm.Provider
	reached  []bool  // by world rank: it is on this host, and both it and this rank have found all others of the host
	number   *uint64 // of this rank's introduction: must stay where it is, since the others read it there

	processes []int  // by world rank: the process, if this rank can read its memory, else 0
	readers   []bool // by world rank: it can read this rank's memory
}

// What a rank has found out about all others of its host: that it can map their memory, and that it can read it.
const (
	canMap byte = 1 << iota
	canRead
)

const hostSecretBytes = 32

// openHostMemory has the ranks find out which of them share memory. All ranks call it. A rank that cannot share any has a
// nil provider, and does not keep the others from sharing. An error is the library's.
func openHostMemory(ctx context.Context, lib *native.World, cfg *Config) (*hostMemory, error) {
	rank, size := lib.Comm().Rank(), lib.Comm().Size()
	h := &hostMemory{reached: make([]bool, size), processes: make([]int, size), readers: make([]bool, size)}
	if size == 1 {
		return h, nil
	}
	nonce := make([]byte, hostSecretBytes)
	rand.Read(nonce)
	nonces, err := exchangeCards(ctx, lib, nonce)
	if err != nil {
		return nil, err
	}
	h.number = new(uint64)
	own, _ := binary.Append(nil, binary.BigEndian, procmem.Introduce(h.number)) // numbers only: no error
	h.provider, err = shm.Open(shm.Config{Rank: rank, Size: size, Job: "mpi", Secret: nonces[0], Log: cfg.log(), Copies: 2,
		HandshakeTimeout: cfg.firstContact(shm.UsualTimeout)})
	if err != nil {
		cfg.log().Warn("this rank shares no memory with others", "err", err)
	} else {
		own = append(own, h.provider.Address()...)
	}
	cards, err := exchangeCards(ctx, lib, own)
	if err == nil {
		err = h.meet(ctx, lib, cards)
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// meet looks for the other ranks of this host by their cards, and hears from each rank whether it has found all others of
// its host.
func (h *hostMemory) meet(ctx context.Context, lib *native.World, cards [][]byte) error {
	found := []byte{0}
	if h.provider != nil {
		found[0] = canMap | canRead
		for r, b := range cards {
			var intro procmem.Introduction
			n, err := binary.Decode(b, binary.BigEndian, &intro)
			if err != nil {
				return fmt.Errorf("card of rank %d: %w", r, err)
			}
			at := b[n:]
			if r == lib.Comm().Rank() || len(at) == 0 || !shm.SameHost(h.provider.Address(), at) {
				continue
			}
			if h.reached[r] = h.provider.Connect(r, at) == nil; !h.reached[r] {
				found[0] &^= canMap
			}
			if h.processes[r] = int(intro.Process); !intro.Proved() {
				found[0] &^= canRead
			}
		}
	}
	all, err := exchangeCards(ctx, lib, found)
	if err != nil {
		return err
	}
	for r := range h.reached {
		if len(all[r]) != 1 {
			return fmt.Errorf("rank %d has found %x", r, all[r])
		}
		here := h.processes[r] != 0
		h.reached[r] = h.reached[r] && found[0]&all[r][0]&canMap != 0
		h.readers[r] = here && all[r][0]&canRead != 0
		if found[0]&canRead == 0 {
			h.processes[r] = 0
		}
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
