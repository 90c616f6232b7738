package mpi

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// The bootstrap brings ranks together that know nothing of each other but what
// the launcher told them.
//
//  1. meet: position 0 listens where the others can find it, and every rank
//     comes by the job's secret.
//     In a step whose ranks are left to choose a transport, they compare what they have
//     found first (choice_agree.go).
//  2. The caller opens its transports, whose listeners need the secret.
//  3. agree: each rank sends its card (place, host, addresses, layout) to
//     position 0, which compares the layouts and answers with each rank's
//     parent in the tree; the roster of all ranks comes down the tree.
//
// Used of Config: AddressRule, SecretDir, StartTimeout, PeerTimeout, Layout,
// Lookup, Log.

// rendezvousPorts is the number of ports that position 0 may listen on in a
// Slurm step.
const rendezvousPorts = 16

// strangers is how many connections that have proved nothing a listener keeps besides one for each rank.
// The one for each rank is there so that ranks that come all at once do not push each other out.
const strangers = 64

// meeting is a rank on its way into a world, between meet and agree.
type meeting struct {
	cfg      *Config
	l        *origin
	deadline time.Time

	secret  []byte
	address netip.Addr // published: transports listen on it
	why     string     // it is that address
	keys    string     // how the secret was come by, for the start-up lines

	// Position 0 only.
	door    *wire.Door
	place   string // where it listens, and why there
	joiners chan joiner
	keyFile *secretFile
	told    []net.Conn // of ranks that have got a verdict (sendVerdict)
	// The others: an authenticated connection to position 0.
	conn     net.Conn
	zeroRank int // rank of position 0
	// Under a process manager: to be finished when all have met.
	manager     manager
	keyless     error  // there: why the ranks of a Slurm step have no other way to meet
	zeroAddress string // there: where position 0 listens

	done chan struct{} // closed by close
}

// joiner is a rank that has come to position 0.
type joiner struct {
	rank    int
	conn    net.Conn
	kind    byte // of the frame: a card, a finding, or why it goes no further
	card    card
	finding finding
	refusal refusal
	err     error // its connection broke, or what it said was malformed
}

// meet blocks until this rank has the job's secret and, unless it is position
// 0, has reached position 0; until ctx ends or StartTimeout is over.
func meet(ctx context.Context, cfg *Config, l *origin) (*meeting, error) {
	m := &meeting{cfg: cfg, l: l, deadline: time.Now().Add(cfg.startTimeout()), done: make(chan struct{})}
	ctx, cancel := context.WithDeadlineCause(ctx, m.deadline, startTimeout(cfg.startTimeout()))
	defer cancel()
	if err := m.meet(ctx); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *meeting) meet(ctx context.Context) (err error) {
	l := m.l
	if l.host == "" {
		l.host = shortHostname()
	}
	if l.size != 1 {
		if err := m.askManager(ctx); err != nil {
			return err
		}
	}
	if l.size == 1 {
		m.secret, m.keys = wire.NewSecret(), "none needed"
		m.address, m.why = loopback, "a single rank"
		return nil
	}
	if !l.atPositionZero() {
		return m.come(ctx)
	}
	keyring, err := m.open(ctx)
	if m.manager != nil {
		return m.tellManager(ctx, keyring, err)
	}
	return err
}

// come is the way of every rank but position 0.
func (m *meeting) come(ctx context.Context) (err error) {
	var unreachable error
	m.address, m.why, unreachable = published(ctx, m.cfg, m.l)
	if m.manager != nil {
		err = m.hearManager(ctx)
	}
	var k *keyring
	if err == nil {
		k, err = m.keyring(ctx)
	}
	if err == nil {
		err = m.join(ctx, k)
	}
	if unreachable == nil {
		return err
	}
	if err == nil { // now that the others can be told
		m.breakOff(ctx, unreachable)
	}
	return unreachable
}

// open makes position 0 ready for the others, and returns how they come by the secret.
func (m *meeting) open(ctx context.Context) (k *keyring, err error) {
	var unreachable error
	m.address, m.why, unreachable = published(ctx, m.cfg, m.l)
	if unreachable != nil && m.manager != nil {
		return nil, unreachable // nowhere to listen; the others hear of it through the manager
	}
	k, err = m.openDoor(ctx)
	if unreachable == nil {
		return k, err
	}
	if err == nil {
		m.breakOff(ctx, unreachable)
	}
	return nil, unreachable
}

func (m *meeting) openDoor(ctx context.Context) (*keyring, error) {
	k, err := m.keyring(ctx)
	if err != nil {
		return nil, err
	}
	if m.secret == nil {
		m.secret = wire.NewSecret()
	}
	if k != nil && k.file != nil {
		// Before anybody can connect and then look for the file: NFS would remember for a minute that it was not there.
		if err := k.file.create(m.secret, m.deadline); err != nil {
			return nil, fmt.Errorf("mpi: %w: %w", ErrLauncher, err)
		}
		m.keyFile = k.file
	}
	listener, why, err := m.listen(ctx)
	if err != nil {
		return nil, err
	}
	m.joiners = make(chan joiner, m.l.size)
	door := wire.DoorConfig{
		Self:  func(<-chan struct{}) (wire.Self, bool) { return m.self([32]byte{}), true },
		Admit: func(p wire.Peer) wire.Verdict { return onlyFor(p, wire.Bootstrap) },
		Enter: m.enter,
		Slots: strangers + m.l.size,
		Log:   m.cfg.log(),
	}
	if k != nil && k.exchange != nil {
		door.Before = func(conn net.Conn, deadline time.Time) error {
			return k.exchange.give(context.Background(), conn, m.secret, deadline)
		}
	}
	m.door = wire.OpenDoor(listener, door)
	m.place = fmt.Sprintf("%s (%s)", m.door.Addr(), why)
	if m.keyFile != nil {
		m.keyFile.sweep(time.Now()) // the others can come meanwhile
	}
	return k, nil
}

func onlyFor(p wire.Peer, purpose wire.Purpose) wire.Verdict {
	if p.Purpose == purpose {
		return wire.Admitted
	}
	return wire.Refused
}

// atPositionZero reports whether this rank is position 0.
func (l *origin) atPositionZero() bool {
	if l.node >= 0 && l.local >= 0 {
		return l.node == 0 && l.local == 0
	}
	return l.rank == 0
}

func (m *meeting) self(layout [32]byte) wire.Self {
	return wire.Self{Secret: m.secret, Job: m.l.identity(), Rank: m.l.rank, Size: m.l.size, Layout: layout}
}

// keyring says how to come by the secret; nil if this rank has it already, or
// position 0 puts it into the process manager's space.
func (m *meeting) keyring(ctx context.Context) (k *keyring, err error) {
	const space = "key-value space of the process manager"
	switch {
	case m.l.kind == ByFisterra:
		secret, err := inheritedSecret(m.l.secretFD)
		if err != nil {
			return nil, fmt.Errorf("mpi: %w: %w", ErrLauncher, err)
		}
		m.secret, m.keys = secret, "descriptor of the launcher's"
		return nil, nil
	case m.secret != nil:
		m.keys = space
		return nil, nil
	case m.manager != nil && m.l.atPositionZero():
		k, err = m.zeroKeyring(ctx)
	default:
		k, err = findKeyring(ctx, m.cfg, m.l, m.cfg.lookup())
	}
	if err != nil {
		return nil, err
	}
	if m.keys = space; k != nil {
		m.keys = k.how
	}
	return k, nil
}

// listen opens the listener that the other ranks look for, and says why it is there.
func (m *meeting) listen(ctx context.Context) (listener net.Listener, why string, err error) {
	switch {
	case m.l.rootFD >= 0:
		f, err := inherit(wire.EnvRootFD, m.l.rootFD)
		if err != nil {
			return nil, "", fmt.Errorf("mpi: %w: %w", ErrLauncher, err)
		}
		defer f.Close()
		listener, err := net.FileListener(f)
		if err != nil {
			return nil, "", fmt.Errorf("mpi: %w: %s is %d: %w", ErrLauncher, wire.EnvRootFD, m.l.rootFD, err)
		}
		return listener, "the launcher's", nil
	case m.l.root != "":
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", m.l.root)
		if err != nil {
			return nil, "", fmt.Errorf("mpi: %w: %s is %q, where rank 0 cannot listen: %w", ErrLauncher, wire.EnvRoot, m.l.root, err)
		}
		return listener, "as the launcher says", nil
	case m.manager != nil:
		listener, err := listenOn(ctx, m.address.String(), 0)
		if err != nil {
			return nil, "", noPlace(ctx, fmt.Errorf("position 0 cannot listen: %w", err))
		}
		return listener, m.why, nil
	}
	host, why := zeroPlace(ctx, m.l)
	var taken []string
	for _, port := range m.l.rendezvousPorts() {
		listener, err := listenOn(ctx, host, port)
		if err == nil {
			return listener, why, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, "", noPlace(ctx, fmt.Errorf("position 0 cannot listen: %w", err))
		}
		taken = append(taken, fmt.Sprint(port))
	}
	return nil, "", noPlace(ctx, fmt.Errorf("position 0 cannot listen (%s): all %d ports are taken (%s); start the step with ports that are reserved for it (srun --resv-ports), "+
		"or by srun --mpi=pmi2 with a named transport (Config.Transport, --transport), where any free port will do", why, len(taken), strings.Join(taken, ",")))
}

// listenOn listens on a port of an address; "" is all addresses.
func listenOn(ctx context.Context, address string, port int) (net.Listener, error) {
	var config net.ListenConfig
	return config.Listen(ctx, "tcp", net.JoinHostPort(address, fmt.Sprint(port)))
}

// allHere reports whether all ranks are on this host.
func (l *origin) allHere() bool { return l.size == l.localSize }

// zeroPlace is the address on which position 0 of a step listens; "" is all addresses. The other ranks look for position 0
// by its host's name. If on the host itself the name leads to loopback (a custom of some distributions) or to several
// addresses, position 0 cannot know to which address it leads the others, and listens on all.
func zeroPlace(ctx context.Context, l *origin) (address, why string) {
	if l.allHere() {
		return loopback.String(), "all ranks are on this host"
	}
	host := l.step.Layout.Nodes[0]
	found, err := wire.ResolveAll(ctx, host)
	switch {
	case err != nil || found[0].IsLoopback():
		return "", fmt.Sprintf("all addresses, since the name %q leads to none here that others can reach", host)
	case len(found) > 1:
		return "", fmt.Sprintf("all addresses, since the name %q leads to several", host)
	}
	return found[0].String(), "address of " + host
}

// zeroHostAddress is where the others look for position 0 of a step: every task can compute it.
func zeroHostAddress(ctx context.Context, l *origin) (netip.Addr, error) {
	if l.allHere() {
		return loopback, nil
	}
	host := l.step.Layout.Nodes[0]
	if l.node == 0 {
		addr, _, err := ordinary(ctx, host)
		return addr, err
	}
	addr, err := wire.Resolve(ctx, host)
	if err != nil {
		return addr, fmt.Errorf("address of %s, where position 0 is: %w", host, err)
	}
	return addr, nil
}

// rendezvousPorts are the ports that position 0 tries in this order: those that
// Slurm reserved for the step, then a window that follows from job and step, outside the
// kernel's range for outgoing connections.
func (l *origin) rendezvousPorts() []int {
	var ports []int
	if l.step != nil {
		ports = append(ports, l.step.Ports[:min(len(l.step.Ports), rendezvousPorts)]...)
	}
	h := fnv.New32a()
	h.Write([]byte(l.job))
	base := 16384 + rendezvousPorts*int(h.Sum32()%1024)
	for p := base; len(ports) < rendezvousPorts; p++ {
		ports = append(ports, p)
	}
	return ports
}

// leaveTime bounds the goodbye that a rank which gives up says to its process manager: the manager may still be busy with
// a call that this rank no longer waits for.
const leaveTime = 2 * time.Second

// close gives up what meet has opened.
func (m *meeting) close() {
	close(m.done)
	if m.door != nil {
		m.door.Close()
	}
	m.dismiss()
	for _, conn := range m.told {
		conn.Close()
	}
	if m.conn != nil {
		m.conn.Close()
	}
	if m.keyFile != nil {
		m.keyFile.remove()
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	_ = m.leaveManager(ctx) // why this rank gives up tells more
}
