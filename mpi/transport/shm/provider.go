// Package shm is the provider for ranks of one host: they talk through memory
// that they share.
//
// Two ranks meet over an AF_UNIX socket, on which the kernel says who the other
// is, and share one sealed memfd from then on. Small messages are cells of a
// ring with a single producer and a single consumer: one cache line each, or one
// for several of a stream, without a system call or an allocation. Payloads that do not fit go through a
// ring of bytes. Large messages are copied once, straight from the sender's memory to the receiver's, by both ranks at the
// same time, where that memory is mapped (mapped.go, freshness.go). Others go through the ring, or are copied by process_vm_readv of the receiver and
// process_vm_writev of the sender: whichever is quicker on this
// processor (calibrate.go) and between these two ranks (memcopy.Crossing), where the kernel allows it.
//
// A rank that has polled in vain arms its bell, an eventfd, which peers ring
// only then. The end of the socket is the end of the peer. All that is shared
// are memfds, eventfds and abstract socket names: the kernel takes them back
// when the last rank that has them ends, in whatever way it ends.
package shm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/memcopy"
	"github.com/fisterra-hpc/fisterra/internal/osyield"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Config says who this rank is and whom it trusts.
type Config struct {
	Rank, Size int
	Job        string // name of the job
	Restart    int    // its incarnation
	// Secret is known to the ranks of the job only, at least 16 bytes. It may
	// be empty for a job of one rank.
	Secret []byte
	// Set is where the rank sleeps. nil: it never does.
	Set transport.Set
	// HandshakeTimeout bounds the making of a connection and an Import. 0 is UsualTimeout.
	HandshakeTimeout time.Duration
	// Copies is how often large messages are copied: 1 by process_vm_* of both
	// ranks, where the kernel lets them; 2 through the ring of bytes; 0
	// whichever of the two is quicker here.
	Copies int
	// Log gets what is not an error of an operation. nil: nothing is logged.
	Log *slog.Logger
}

const (
	// UsualTimeout is how long a rank may take to connect, or to answer an Import, unless Config says otherwise: other
	// processes of the host may starve it.
	UsualTimeout = 30 * time.Second
	// eagerBytes fit into a byte ring of its first size, wherever in it the payloads lie whose credit the receiver may hold
	// back: less than creditBytes, each payload rounded up to pieceAlign. If they lie in the middle, half of the rest is free
	// on either side, and where the sender has turned back there may be a gap of a piece besides.
	eagerBytes = (firstRing-creditBytes-creditCells*pieceAlign)/2 - pieceAlign
	_          = uint((gapRing-creditBytes-creditCells*(pieceAlign+memcopy.ReadAheadBytes))/2 - pieceAlign - eagerBytes) // they fit with gaps, too
	// creditLimit is what one rank may leave unconsumed at another.
	creditLimit = 4 << 20

	minSecretBytes = 16
)

// Provider implements transport.Provider, transport.Memory and transport.Mapper.
type Provider struct {
	cfg     Config
	address address
	bell    *doorbell

	habit habit
	pause osyield.Pause

	// Guarded by the world's lock.
	crowded  bool
	peers    []*endpoint
	live     []*endpoint // up
	hot      [hotPeers]*endpoint
	hotCount int
	victim   int
	cursor   int
	sweepAll bool
	polls    uint64
	streams  int // payloads being sent, to all peers
	dones    []done
	ailing   []*endpoint // to be reported as lost, or to be closed

	pulls     []*pull
	helps     []*exposure // of which peers want help
	awaited   []*exposure // that Withdraw could not end yet, since the peer was reading
	freePulls []*pull
	copiers   *copier
	copying   sync.WaitGroup // copies outside the lock

	// Guarded by themselves.
	news     news
	meetings meetings
	exports  exports
	listener *net.UnixListener
	presence int
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup
	conns    sync.Map // *net.UnixConn of handshakes
}

var (
	_ transport.Provider = (*Provider)(nil)
	_ transport.Memory   = (*Provider)(nil)
	_ transport.Mapper   = (*Provider)(nil)
	_ transport.Crowder  = (*Provider)(nil)
	_ transport.Taker    = (*Provider)(nil)
)

// Open makes the provider of this rank. It fails where ranks cannot share
// memory at all; the error says why.
func Open(cfg Config) (p *Provider, err error) {
	switch {
	case cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size:
		return nil, fmt.Errorf("shm: rank %d of %d: a rank is at least 0 and less than the size", cfg.Rank, cfg.Size)
	case cfg.Size > 1 && len(cfg.Secret) < minSecretBytes:
		return nil, fmt.Errorf("shm: the job's secret has %d bytes, at least %d are needed", len(cfg.Secret), minSecretBytes)
	case cfg.Copies < 0 || cfg.Copies > 2:
		return nil, fmt.Errorf("shm: %d copies of large messages: 1, 2, or 0 for the quicker", cfg.Copies)
	case cfg.HandshakeTimeout < 0:
		return nil, fmt.Errorf("shm: handshake timeout %v is negative", cfg.HandshakeTimeout)
	}
	if cfg.HandshakeTimeout == 0 {
		cfg.HandshakeTimeout = UsualTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p = &Provider{cfg: cfg, peers: make([]*endpoint, cfg.Size), presence: -1}
	p.meetings.byRank = map[int]*encounter{}
	p.meetings.addresses = map[int]address{}
	p.exports.segments = map[uint64]export{}
	p.exports.areas.Store(new(areas))
	p.exports.asked = map[uint64]chan imported{}
	p.habit, p.pause = calibrate(cfg.Copies), osyield.NewPause()
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if err := p.open(); err != nil {
		p.Close()
		return nil, fmt.Errorf("shm: %w", err)
	}
	return p, nil
}

func (p *Provider) open() (err error) {
	if p.address, err = newAddress(); err != nil {
		return err
	}
	if p.bell, err = newDoorbell(); err != nil {
		return err
	}
	if p.presence, err = p.address.announce(); err != nil {
		return err
	}
	name := &net.UnixAddr{Net: "unixpacket", Name: p.address.socket()}
	if p.listener, err = net.ListenUnix("unixpacket", name); err != nil {
		return err
	}
	if p.cfg.Set != nil {
		if err := p.cfg.Set.Watch(p.bell.bell, unix.EPOLLIN); err != nil {
			return err
		}
	}
	allowCopies()
	p.running.Go(p.listen)
	return nil
}

// allowCopies lets processes of the same user copy this one's memory where the
// Yama security module would let only its parent.
func allowCopies() {
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && strings.TrimSpace(string(scope)) == "1" {
		const any = ^uintptr(0) // PR_SET_PTRACER_ANY
		unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_PTRACER, any, 0)
	}
}

// Name is "shm".
func (p *Provider) Name() string { return "shm" }

// Caps says what shared memory does well.
func (p *Provider) Caps() transport.Caps {
	h := p.habit
	if p.cfg.Copies != 2 {
		h.pullBytes = min(h.pullBytes, mappedFrom)
	}
	return transport.Caps{
		EagerBytes: eagerBytes, RendezvousBytes: h.rendezvousBytes, PullBytes: h.pullBytes,
		CreditBytes: creditLimit, SameHost: true,
	}
}

// Crowd has the kernel copy messages that do not fit into the ring at once, where that is possible: through the ring both
// ranks would have to wait for their turn on a processor again and again. The rings stay small.
func (p *Provider) Crowd() { p.crowded = true }

// Address is where peers find this rank.
func (p *Provider) Address() []byte { return p.address.encode() }

// Connect says where a peer is, after making sure that it is on this host.
func (p *Provider) Connect(peer int, at []byte) error {
	if err := p.checkPeer(peer); err != nil {
		return fmt.Errorf("shm: %w", err)
	}
	a, err := parseAddress(at)
	if err == nil {
		err = p.address.host.apart(a.host)
	}
	if err == nil {
		err = a.present()
	}
	if err != nil {
		return fmt.Errorf("shm: rank %d: %w", peer, err)
	}
	p.meetings.mu.Lock()
	defer p.meetings.mu.Unlock()
	p.meetings.addresses[peer] = a
	return nil
}

// ringLimit is how large the byte ring to a peer may become. Ranks that share a processor
// share its caches: they do best with little memory.
func (p *Provider) ringLimit() uint32 {
	if p.crowded {
		return firstRing
	}
	p.meetings.mu.Lock()
	defer p.meetings.mu.Unlock()
	return ringLimit(len(p.meetings.addresses))
}

func (p *Provider) checkPeer(peer int) error {
	if peer < 0 || peer >= p.cfg.Size || peer == p.cfg.Rank {
		return fmt.Errorf("rank %d is not a peer of rank %d of %d", peer, p.cfg.Rank, p.cfg.Size)
	}
	return nil
}

// endpoint finds or makes what this rank knows of a peer.
func (p *Provider) endpoint(peer int) *endpoint {
	ep := p.peers[peer]
	if ep == nil {
		ep = &endpoint{p: p, rank: peer, pause: p.pause}
		p.peers[peer] = ep
	}
	return ep
}

// Send takes a message of at most EagerBytes.
func (p *Provider) Send(peer int, h *transport.Header, payload []byte) transport.Outcome {
	ep := p.peers[peer]
	if ep == nil || ep.state != up || ep.broken != nil {
		return p.sendApart(peer)
	}
	return ep.send(h, payload)
}

// SendFrom takes a message of any size if it is Data, else as Send does.
func (p *Provider) SendFrom(peer int, h *transport.Header, payload []byte, op uint64) transport.Outcome {
	ep := p.peers[peer]
	if ep == nil || ep.state != up || ep.broken != nil {
		return p.sendApart(peer)
	}
	return ep.sendFrom(h, payload, op)
}

// sendApart takes nothing: it begins to connect and is Full, or it is Gone because the peer is.
func (p *Provider) sendApart(peer int) transport.Outcome {
	ep := p.endpoint(peer)
	if ep.broken != nil || ep.state >= leaving {
		return transport.Gone
	}
	ep.meet()
	return transport.Full
}

// Path says in words how messages to a peer travel; empty before the two have met.
func (p *Provider) Path(peer int) string {
	if ep := p.peers[peer]; ep != nil && ep.link != nil {
		return ep.link.path
	}
	return ""
}

func (p *Provider) track(c *net.UnixConn) {
	p.conns.Store(c, nil)
	if p.ctx.Err() != nil {
		c.Close()
	}
}

func (p *Provider) untrack(c *net.UnixConn) { p.conns.Delete(c) }

// errClosed is what operations under way at Close complete with, were there
// anybody to tell.
var errClosed = errors.New("shared memory was closed")
