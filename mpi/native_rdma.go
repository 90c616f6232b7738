package mpi

import (
	"fmt"
	"slices"
)

// An MPI library may take another network although the host has an RDMA device: because it was built without UCX or
// libfabric, because its own variables say so, or because the device failed it. It does not tell, but a library that
// drives a device has the device's file open from MPI_Init on.

// rdmaCheck checks a library that was chosen for its RDMA.
type rdmaCheck struct {
	opened   func() ([]string, error) // device files that this process has open; nil: no check
	required bool                     // without RDMA the world is refused; else rank 0 warns
}

// idle reports whether this rank's library has opened no RDMA device.
func (c rdmaCheck) idle(cfg *Config) bool {
	if c.opened == nil {
		return false
	}
	files, err := c.opened()
	if err != nil {
		cfg.log().Debug("not known whether the MPI library has opened an RDMA device", "because", err)
		return false
	}
	cfg.log().Debug("RDMA devices that the MPI library has opened", "files", files)
	return len(files) == 0
}

// idleRanks is the error of ranks on several hosts whose library has opened no RDMA device; nil if all have.
func idleRanks(cards []nativeCard, library string) error {
	several := slices.ContainsFunc(cards, func(c nativeCard) bool { return c.Card.Host != cards[0].Card.Host })
	var idle []int
	for r, c := range cards {
		if c.Idle {
			idle = append(idle, r)
		}
	}
	if !several || len(idle) == 0 {
		return nil
	}
	return fmt.Errorf("%s has opened no RDMA device on %s (%s), so messages between hosts go another way; see for which networks it "+
		"is built and what its variables ask for (UCX_TLS, UCX_NET_DEVICES, OMPI_MCA_pml, OMPI_MCA_btl, FI_PROVIDER)",
		library, rankList(idle), cards[idle[0]].Card.Host)
}
