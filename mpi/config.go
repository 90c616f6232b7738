package mpi

import (
	"fmt"
	"log/slog"
	"time"
)

// Config says how a world is started. The zero value is right for a program
// started by fisterra run, by srun, or alone.
type Config struct {
	// Lookup reads the environment; nil is os.LookupEnv. Init is the one place
	// where this package reads it.
	Lookup func(string) (string, bool)

	// Transport picks how messages travel: "" or "auto" (as InfiniBand says), "shm", "tcp" (also
	// between ranks of one host), or "mpi" (the system's MPI library).
	Transport string

	// InfiniBand is "auto" (or ""), "on" or "off". Auto takes the system's MPI library where the launcher can start its
	// ranks and there are a device and a library: in a Slurm step on the hosts of all ranks, elsewhere on this rank's
	// host. Else it takes shared memory between ranks of one host, and TCP. On takes a transport that can do RDMA, and
	// is an error where that or a usable device on this host is missing. Off takes shared memory, and TCP over the
	// host's ordinary address, whatever AddressRule says. Off with Transport "mpi" is an error where the library would
	// use a device: on hosts that have one, unless all ranks are on this host.
	InfiniBand string

	// AddressRule says which address of this host is published for TCP: the
	// name of a rule of package ib ("hostname", "cesga-ft2"), an interface name
	// or a glob ("ib0", "ib*"). Empty: the host's ordinary address.
	AddressRule string

	// MPILibrary is the path of the system's MPI library, for Transport "mpi".
	// Empty: the one that the launcher implies, else what the loader finds.
	MPILibrary string

	// OutlivesRanks says that the program goes on when ranks are lost. The system's MPI library cannot do so: it does
	// not tell which rank is lost, and its launcher ends the job. So the library is then used only where it is asked
	// for, by Transport or InfiniBand, and a warning says what that means.
	OutlivesRanks bool

	// PeerTimeout is how long a rank may be silent before it counts as lost. A rank that is to connect for the first
	// message has at least as long, too. 0 is 5 s; a negative value turns heartbeats off; less than [MinPeerTimeout] is
	// refused, and more than a day counts as a day. It has no meaning for Transport "mpi": there the launcher notices a
	// rank that has died, and nobody one that is silent.
	PeerTimeout time.Duration

	// StartTimeout bounds the time from Init until all ranks have met. 0 is 60 s.
	StartTimeout time.Duration

	// SecretDir is a directory on a file system shared by all nodes, for the job's key where munge does not answer. The
	// key file is there only while the ranks meet. If position 0 is killed meanwhile, the file stays; the same user's
	// next start with this directory removes it, once the StartTimeout of the killed one has been over for a day.
	SecretDir string

	// Layout is what all ranks must agree on before the first message (cluster,
	// roles, options). Init compares it field by field and names the field and the
	// ranks that differ.
	Layout []LayoutField

	// CongestionControl is the TCP congestion control of data connections.
	// Empty: cubic where the system's default paces loopback and cluster links (BBR), else
	// the system's default.
	CongestionControl string

	// Log receives start-up lines, losses and refusals; nil discards them.
	Log *slog.Logger
}

// LayoutField is one thing that all ranks must agree on.
type LayoutField struct {
	Name  string
	Value string
}

const (
	defaultPeerTimeout  = 5 * time.Second
	defaultStartTimeout = 60 * time.Second
)

func (c *Config) peerTimeout() time.Duration {
	switch {
	case c.PeerTimeout == 0:
		return defaultPeerTimeout
	case c.PeerTimeout < 0:
		return 0
	}
	return min(c.PeerTimeout, silence)
}

// MinPeerTimeout is the shortest Config.PeerTimeout: ranks that wait for less take each other's pauses for their end.
const MinPeerTimeout = 10 * time.Millisecond

// check refuses values that no rank could run with.
func (c *Config) check() error {
	if c.PeerTimeout > 0 && c.PeerTimeout < MinPeerTimeout {
		return fmt.Errorf("mpi: %w: PeerTimeout %v is less than %v; use one such as 5s, or a negative one for no heartbeats", ErrTransport, c.PeerTimeout, MinPeerTimeout)
	}
	return nil
}

// own is the Config for Fisterra's own transports.
func (c *Config) own() *Config {
	own := *c
	if c.InfiniBand == "off" {
		own.AddressRule = ""
	}
	return &own
}

// silence is the longest that a rank is waited for, also without heartbeats.
const silence = 24 * time.Hour

// firstContact is how long a rank may take to connect over a transport that usually allows the given time: never less
// than a rank may be silent later.
func (c *Config) firstContact(usual time.Duration) time.Duration {
	if t := c.peerTimeout(); t > 0 {
		return max(t, usual)
	}
	return silence
}

func (c *Config) startTimeout() time.Duration {
	if c.StartTimeout <= 0 {
		return defaultStartTimeout
	}
	return c.StartTimeout
}

func (c *Config) log() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}
