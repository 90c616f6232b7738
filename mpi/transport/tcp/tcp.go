// Package tcp is the provider that carries messages over TCP connections.
//
// A connection is made by the first message between two ranks, on the
// published address only, and opens with the mutual hello of package wire. Then
// the socket is taken out of Go's network poller: whoever polls the world reads and
// writes it by system calls of its own that never block, and a sleeping rank
// is woken through the world's Set. Payloads of Data messages go from the
// kernel straight to the memory that the engine names; other payloads are handed over as
// views of a buffer that all connections share.
package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

const (
	// UsualTimeout is how long a rank may take to connect, unless Config says otherwise.
	UsualTimeout = 10 * time.Second
	// EagerBytes is the largest payload of a message that is not Data.
	EagerBytes = 128 << 10
	// rendezvousBytes: below it the copy out of the receive buffer costs less than
	// the round trip of a rendezvous. Measured on loopback (BenchmarkPingPong).
	rendezvousBytes = 128 << 10
	creditBytes     = 2 << 20
)

// Config says who this rank is and how its connections are tuned.
type Config struct {
	Rank, Size int
	// Job is the job's name and Restart its incarnation; together they are the
	// job.step.restart of the hello.
	Job     string
	Restart int
	Secret  []byte // wire.SecretBytes long
	// Host is the published address to listen on and to dial from: an IP
	// address, or a name of this host. Never the wildcard.
	Host string
	Set  transport.Set
	Log  *slog.Logger // nil: silent

	// ConnectTimeout bounds dialling and the hello; 0 is UsualTimeout.
	ConnectTimeout time.Duration
	// CongestionControl names the algorithm of every connection. Empty is the
	// system's default, except that BBR, whose pacing halves the bandwidth of loopback
	// and cluster links, is replaced by cubic where that is available.
	CongestionControl string
}

// Provider is transport.Provider over TCP.
type Provider struct {
	cfg        Config
	job        string
	host       netip.Addr
	congestion string
	door       *wire.Door
	log        *slog.Logger

	layout [32]byte
	agreed chan struct{} // closed by SetLayout, which sets layout before

	// Everything from here to mu belongs to the holder of the world's lock.
	links   []link
	conns   []*conn
	hot     *conn // where something last arrived
	streak  int   // polls in a row that looked at hot only
	blocked int   // connections whose output waits for room in the socket
	done    []completion
	spare   []completion // done's other half
	losses  []loss
	epoll   int // own epoll set, made when there are many connections; -1
	ready   [32]unix.EpollEvent
	iov     [maxGather]unix.Iovec
	head    [inlineBytes + maxHeadBytes + wordBytes]byte
	staging []byte
	pools   pools
	closed  bool
	wakeups wakeups

	mu      sync.Mutex // guards what dialling and accepting goroutines touch
	states  []linkState
	arrived []arrival
	inbox   atomic.Bool // arrived is not empty
	bell    int         // eventfd in Set, rung with inbox
	ctx     context.Context
	cancel  context.CancelFunc
	dials   sync.WaitGroup
}

var _ transport.Provider = (*Provider)(nil)

type completion struct {
	op  uint64
	err error
}

type loss struct {
	peer int
	err  error
}

// Open listens on the published address and returns a provider that knows no
// peers yet.
func Open(cfg Config) (*Provider, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size {
		return nil, fmt.Errorf("tcp: rank %d of %d", cfg.Rank, cfg.Size)
	}
	if len(cfg.Secret) != wire.SecretBytes {
		return nil, fmt.Errorf("tcp: the job's secret has %d bytes, must be %d", len(cfg.Secret), wire.SecretBytes)
	}
	if cfg.Set == nil {
		return nil, errors.New("tcp: Config.Set is nil")
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = UsualTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	host, err := publishedAddress(cfg.Host)
	if err != nil {
		return nil, err
	}
	congestion, err := CongestionControl(cfg.CongestionControl)
	if err != nil {
		return nil, err
	}
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(host, 0)))
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("tcp: eventfd: %w", err)
	}
	p := &Provider{
		cfg: cfg, job: fmt.Sprintf("%s.%d", cfg.Job, cfg.Restart), host: host, congestion: congestion, log: cfg.Log,
		links: make([]link, cfg.Size), states: make([]linkState, cfg.Size),
		epoll: -1, bell: bell,
	}
	p.agreed = make(chan struct{})
	p.staging = p.pools.get(stageBytes)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if err := cfg.Set.Watch(bell, unix.EPOLLIN); err != nil {
		listener.Close()
		unix.Close(bell)
		return nil, fmt.Errorf("tcp: %w", err)
	}
	p.door = wire.OpenDoor(listener, wire.DoorConfig{
		Self: p.self, Admit: p.admit, Enter: p.enter, Slots: cfg.Size + 64, Log: cfg.Log,
	})
	return p, nil
}

// publishedAddress resolves the address that is listened on.
func publishedAddress(host string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	addr, err := wire.Resolve(ctx, host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("tcp: published address %q is neither an IP address nor a name of this host: %w", host, err)
	}
	if addr.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("tcp: published address %q is the wildcard; it must be one address of this host", host)
	}
	return addr, nil
}

// self blocks until the layout is known, or gone is closed: peers may dial before this rank has
// heard that all agree.
func (p *Provider) self(gone <-chan struct{}) (wire.Self, bool) {
	select {
	case <-p.agreed:
	case <-gone:
		return wire.Self{}, false
	}
	return wire.Self{Secret: p.cfg.Secret, Job: p.job, Rank: p.cfg.Rank, Size: p.cfg.Size, Layout: p.layout}, true
}

// SetLayout gives the hash of the layout that the ranks agreed on, once.
// Connections are made only after it, and only between ranks with the same hash; until
// then sends are Full.
func (p *Provider) SetLayout(hash [32]byte) {
	p.layout = hash
	close(p.agreed)
}

func (p *Provider) Name() string { return "tcp" }

func (p *Provider) Caps() transport.Caps {
	return transport.Caps{EagerBytes: EagerBytes, RendezvousBytes: rendezvousBytes, CreditBytes: creditBytes}
}

// Address is the listener's address and port as text.
func (p *Provider) Address() []byte {
	return []byte(p.door.Addr().(*net.TCPAddr).AddrPort().String())
}

func (p *Provider) Connect(peer int, address []byte) error {
	if peer < 0 || peer >= p.cfg.Size || peer == p.cfg.Rank {
		return fmt.Errorf("tcp: rank %d is no peer of rank %d of %d", peer, p.cfg.Rank, p.cfg.Size)
	}
	to, err := netip.ParseAddrPort(string(address))
	if err != nil || to.Port() == 0 || to.Addr().IsUnspecified() {
		return fmt.Errorf("tcp: address of rank %d is %q, want ip:port", peer, address)
	}
	p.links[peer].address = to
	return nil
}

// Detach forgets peer: see transport.Provider.
func (p *Provider) Detach(peer int) {
	l := &p.links[peer]
	if l.gone {
		return
	}
	l.gone = true
	p.mu.Lock()
	p.states[peer].phase = linkGone
	p.mu.Unlock()
	if l.conn != nil {
		p.drop(l.conn, errDetached)
	}
}

var (
	errDetached  = errors.New("tcp: peer detached")
	errAbandoned = errors.New("tcp: abandoned")
)

// Close stops accepting and dialling, waits at most a second for accepted messages to leave, and closes every connection.
func (p *Provider) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.cancel()
	err := p.door.Close()
	p.dials.Wait()
	p.linger(time.Now().Add(time.Second))
	p.unwatch()
	for len(p.conns) > 0 {
		p.drop(p.conns[len(p.conns)-1], net.ErrClosed)
	}
	for _, a := range p.arrived { // nobody polls any more
		if a.fd >= 0 {
			unix.Close(a.fd)
		}
	}
	p.arrived = nil
	p.cfg.Set.Unwatch(p.bell)
	unix.Close(p.bell)
	if p.epoll >= 0 {
		unix.Close(p.epoll)
	}
	if err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	return nil
}

// linger flushes output and waits until the peers' kernels have all of it,
// since closing a socket with unread input makes the kernel throw its output away.
func (p *Provider) linger(deadline time.Time) {
	for {
		var waiting []unix.PollFd
		var conns []*conn
		step := time.Until(deadline)
		for _, c := range p.conns {
			if c.broken == nil && c.out.pending() {
				c.flush()
			}
			if c.broken != nil {
				continue
			}
			var events int16
			if c.out.pending() {
				events = unix.POLLOUT
			} else if n, err := unix.IoctlGetInt(c.fd, unix.SIOCOUTQ); err != nil || n == 0 {
				continue
			} else {
				step = min(step, time.Millisecond) // no event tells when a peer's kernel has acknowledged
			}
			waiting = append(waiting, unix.PollFd{Fd: int32(c.fd), Events: events})
			conns = append(conns, c)
		}
		if len(waiting) == 0 || step <= 0 {
			return
		}
		timeout := unix.NsecToTimespec(int64(step))
		unix.Ppoll(waiting, &timeout, nil)
		for i, w := range waiting {
			if w.Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
				conns[i].broken = errHangup
			}
		}
	}
}
