package mpi

import "fmt"

// Open MPI's own transports within a host and over TCP (its BTLs) move long
// messages by RDMA-like get and put, and then do not look at how long the receive buffer is: a
// message that is too long is reported as truncated after all of it has been written, over whatever
// lies behind the buffer (4.1.4: 199,999 bytes of a message of 200,000 received into one). With send and
// receive alone nothing is written beyond it. With longer fragments that is no slower from 1 MiB on, since both
// ranks copy at a time (68 µs where process_vm_readv takes 86), but 64 KiB take a third longer (9.4 for 6.8 µs).
// Who needs those more than the guard sets OMPI_MCA_btl_vader_flags=send,get,put,inplace.
//
// UCX and libfabric, by which Open MPI drives InfiniBand and Omni-Path, check lengths themselves.
var openMPISettings = []struct {
	btl string
	// flags come first: where the user has set them, this BTL is left alone.
	settings [][2]string
}{
	{"vader", sharedMemoryBTL},
	{"sm", sharedMemoryBTL}, // vader's name from Open MPI 5 on
	{"tcp", [][2]string{{"flags", "send,inplace"}, {"max_send_size", "1048576"}}},
}

var sharedMemoryBTL = [][2]string{
	{"flags", "send,inplace"},
	{"max_send_size", "131072"},
	{"free_list_inc", "8"}, // a segment has room for some 30 such fragments
}

// settleOpenMPI puts those settings into the environment, which must be
// before the library is loaded, except those that the user has made.
func settleOpenMPI(lookup func(string) (string, bool), set func(name, value string) error) error {
	for _, b := range openMPISettings {
		for _, s := range b.settings {
			name := fmt.Sprintf("OMPI_MCA_btl_%s_%s", b.btl, s[0])
			if _, given := lookup(name); given && s[0] == "flags" {
				break
			} else if given {
				continue
			}
			if err := set(name, s[1]); err != nil {
				return fmt.Errorf("mpi: %s: %w", name, err)
			}
		}
	}
	return nil
}
