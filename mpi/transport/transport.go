// Package transport is the contract between the message engine of package mpi
// and the providers that move its messages: shared memory, TCP, and a
// simulated fabric.
//
// A provider moves (header, payload) messages in order between this rank and
// its peers and, where it can, memory that a peer has exposed. It knows nothing
// of communicators, tags or matching: the header is the engine's, and providers
// only carry it. What a provider can do stands in its Caps; what it cannot do
// it does not offer, so there are no stubs that fail.
//
// # Who calls what
//
// The engine calls every method of Provider, and of the further interfaces that a provider may implement, with the world's
// lock held, by one goroutine at a time, and never during or after Close. The exceptions are Close itself, Sleeper.Wake and
// the methods of Mapper. A provider calls back into its Sink only from inside Poll. Methods never block: a step that may take
// long (dialling, a handshake) runs on a goroutine of the provider's own and hands its result over through Poll, waking the
// rank by a descriptor in Set.
//
// # Ordering
//
// Messages from one rank to one peer arrive in the order in which Send and
// SendFrom accepted them. The payload of a SendFrom may complete later than
// messages sent after it only if the provider keeps the header's place in
// that order.
package transport

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Header is what the engine puts in front of every message. Providers carry
// all of its fields unchanged and may pack them as they like.
type Header struct {
	Kind    Kind   // protocol step, the engine's own
	Context uint32 // communicator context id
	Tag     int32
	Bytes   uint64 // length of the whole user message; for Eager the payload's
	Token   uint64 // names an operation at the receiver of this header
	Aux     uint64 // names an operation at the sender of this header, or an offset
}

// Kind is a protocol step. Providers look at it for one purpose only: they read the payload of a Data message straight to
// where Sink.Place points. If the sink is a Claimer, they may do so with other long messages.
type Kind uint8

// Data marks a message whose payload goes to memory that the engine names by
// Sink.Place. All other kinds are the engine's business.
const Data Kind = 1

// Outcome is what became of a send.
type Outcome uint8

const (
	// Sent: the provider took the message.
	Sent Outcome = iota
	// Full: nothing was taken; offer the same message again after a Poll.
	// Back-pressure is a state, not an error.
	Full
	// Gone: the peer is lost or has said goodbye; nothing was taken. A loss that the sink has not been told of yet is
	// reported as Lost by the next Poll.
	Gone
)

// Caps says what a provider can do and where it does it well.
type Caps struct {
	// EagerBytes is the largest payload Send takes.
	EagerBytes int
	// RendezvousBytes is the message size from which the engine should use
	// Pull (if the provider implements Memory) or Data messages instead of
	// eager ones. Measured, at most EagerBytes.
	RendezvousBytes int
	// PullBytes is the size from which Pull may be better than any other message, if Expose agrees;
	// ignored without Memory.
	PullBytes int
	// CreditBytes bounds what one peer may have sent eagerly and this rank
	// has not yet consumed, counting EnvelopeBytes for each message.
	CreditBytes int
	// SameHost: only peers on this host can be reached.
	SameHost bool
	// SizesOnly: payloads are not carried, only their lengths; receivers'
	// buffers stay untouched (large simulations).
	SizesOnly bool
}

// EnvelopeBytes is what a queued message costs beyond its payload when eager
// memory is accounted.
const EnvelopeBytes = 96

// Provider moves messages between this rank and its peers, which it names by
// world rank. Constructors (Open in each provider package) take a Config.
type Provider interface {
	// Name is the word users know it by: "shm", "tcp", "sim".
	Name() string
	Caps() Caps

	// Address is what a peer needs to reach this rank. It is opaque to the
	// engine, which publishes it at start-up and hands it to the peers'
	// Connect.
	Address() []byte

	// Connect says where peer is. It does no I/O: the connection is made by
	// the first message to or from that peer. An address this provider cannot
	// reach (another host, for shm) is an error that says why; the engine then
	// takes its next provider for that peer.
	Connect(peer int, address []byte) error

	// Send takes a message of at most EagerBytes and copies what it needs
	// before it returns, so payload is the caller's again at once.
	Send(peer int, h *Header, payload []byte) Outcome

	// SendFrom takes a message of any size whose payload is read from the
	// caller's memory later. The memory belongs to the provider until it
	// reports Complete(op) to the sink.
	SendFrom(peer int, h *Header, payload []byte, op uint64) Outcome

	// Abandon ends the use of the memory given with op (SendFrom or Pull):
	// the provider reports Complete(op, err) as soon as nobody, neither this
	// rank nor the peer, can touch that memory again. After Abandon of a SendFrom the
	// peer's Place is not called for that message once a later message has arrived.
	Abandon(op uint64)

	// Poll makes whatever progress can be made without blocking, calls the
	// sink for each event, and returns the number of events. It bounds the work of
	// one call (a few dozen messages or a chunk of copying). With nothing to do
	// it costs no system call where the medium allows it.
	Poll(s Sink) int

	// Arm prepares for sleep: after it, an arrival makes a descriptor in the
	// Set readable. It reports true if something has arrived already, in which
	// case the rank must Poll instead of sleeping.
	Arm() (ready bool)

	// Disarm undoes Arm: the rank is polling again, and peers need not ring.
	Disarm()

	// Detach forgets a peer that said goodbye or was lost: its connection is
	// closed without a Lost event, and later sends to it are Gone. Operations
	// on memory still in flight complete with an error first (see Abandon).
	Detach(peer int)

	// Close ends the provider and everything it started. It waits, within a
	// second, for messages it has accepted to leave.
	Close() error
}

// Memory is implemented by providers that copy straight between the memory of
// two ranks (one copy instead of two).
type Memory interface {
	// Expose lets peer pull buf, once. It reports false where another way is better. The engine sends the returned key in the
	// payload of a message of its own. The memory belongs to the provider until Withdraw has reported true.
	Expose(peer int, buf []byte) (Key, bool)

	// Pull copies the memory named by key, exposed by peer, into dst and
	// reports Complete(op). Both ranks may do the copying; when Complete is
	// reported neither touches dst any more.
	Pull(peer int, key Key, dst []byte, op uint64) Outcome

	// Withdraw ends an exposure after the peer reported that it has pulled,
	// or to take the memory back. It reports false while the peer may still
	// be reading; the engine then asks again after a Poll.
	Withdraw(peer int, key Key) bool
}

// Key names exposed memory on its owner.
type Key [24]byte

// Taker is implemented by providers whose arrivals lie in memory: a receive that
// waits for one peer can take its message from there, past Poll and the sink.
type Taker interface {
	// Take looks up to the given number of times for the next message of peer. If that message has the kind, context and tag
	// of want, neither Token nor Aux, and fits into buf, Take copies its payload there. It leaves any other message to Poll.
	// The sender gets its room back as if Poll had taken the message.
	Take(peer int, want *Header, buf []byte, looks int) (bytes int, found Find)
	// Pass pauses for as long as is best between two looks for a message of peer, by Take or, while this rank waits for
	// nobody else, by Poll.
	Pass(peer int)
}

// Find is what Take found.
type Find uint8

const (
	// Nothing: no message has come.
	Nothing Find = iota
	// Taken: the message is in buf.
	Taken
	// Other: there is something that Poll must see.
	Other
)

// ErrGone is wrapped by the error of an operation on memory that the peer's end or a broken connection has cut short. Such
// operations complete before the peer is reported as Lost.
var ErrGone = errors.New("the peer is gone")

// Crowder is implemented by providers that do better another way where the ranks outnumber the processors.
type Crowder interface {
	// Crowd says that the ranks outnumber the processors here. It is called before the first message.
	Crowd()
}

// Mapper is implemented by providers whose peers can map shared segments
// (memory from mpi.Alloc) into their own address space. Its methods may be called by any goroutine,
// without the world's lock, also while Poll runs and after Close.
type Mapper interface {
	// Export registers a segment: a memfd that this rank has mapped whole as mem. Until Unexport, peers can import it by the
	// returned handle, and the provider may have peers map it for messages whose buffers lie in mem. Descriptor and mapping
	// stay the caller's, to be closed after Unexport.
	Export(fd int, mem []byte) (handle []byte, err error)
	// Unexport ends the export, unless Close has ended it already.
	Unexport(handle []byte)
	// Import maps a peer's segment. It may do a short round trip on a socket,
	// bounded by ctx and the provider's handshake timeout. The mapping is the caller's to unmap, and outlasts Close.
	Import(ctx context.Context, peer int, handle []byte) ([]byte, error)
}

// Sleeper is implemented by providers that own the passing of time (the
// simulated fabric). The engine then never spins and never sleeps in the
// kernel.
type Sleeper interface {
	// Sleep releases lock, blocks until something may have arrived for this
	// rank, Wake was called or the deadline passed (zero: none), and takes
	// lock again.
	Sleep(lock sync.Locker, deadline time.Time)
	// Wake ends a Sleep of this rank from any goroutine.
	Wake()
	// Now is the time on the fabric's clock.
	Now() time.Time
}

// Sink is the engine's side: where arrivals and completions go. It is called
// only from inside Poll.
type Sink interface {
	// Message hands over a message. payload is a view that is valid until Message returns. The header may be kept by value
	// only. The sink may detach the peer from inside Message, because of what the message says.
	Message(peer int, h *Header, payload []byte)

	// Place asks where the next bytes of a Data payload go, offset counting
	// from the start of that payload of sizeBytes. A provider asks before every read, because
	// the operation may have been given up meanwhile, and writes at most the
	// returned slice. nil: discard the rest of the payload.
	Place(peer int, h *Header, offsetBytes, sizeBytes int) []byte

	// Placed says that the payload of a Data message has arrived whole. It is not called for a payload that was discarded.
	Placed(peer int, h *Header)

	// Complete ends the use of the memory of a SendFrom or a Pull.
	Complete(op uint64, err error)

	// Lost says that a peer's connection broke without a goodbye.
	// It is reported once for a peer.
	Lost(peer int, err error)

	// Outside runs work with the world's lock released and takes it again.
	// For long copies: the provider's state must be consistent, since other
	// goroutines may call its methods meanwhile.
	Outside(work func())
}

// Claimer is implemented by sinks that can name the memory for the payload of a long message of another kind than Data while
// the payload is still arriving, so that the provider need not put it together.
type Claimer interface {
	// Claim asks for that memory once the header has arrived, but not the whole payload of sizeBytes. If it reports true,
	// Place tells where the payload goes and Placed ends it, as for Data; both are given h with the Token that Claim may have
	// set. Otherwise the message comes by Sink.Message, whole.
	Claim(peer int, h *Header, sizeBytes int) bool
}

// Batcher is implemented by sinks that do better when messages that differ only in their payloads come in one call.
type Batcher interface {
	// Batch hands over count messages under one header, each h.Bytes long, the i-th at payloads[i*strideBytes:]. It returns how
	// many of them, from the first on, the sink has taken; the others come by Sink.Message.
	Batch(peer int, h *Header, payloads []byte, strideBytes, count int) (taken int)
}

// Set is the world's one sleep: the descriptors that can wake this rank
// (level-triggered). Safe for use by any goroutine.
type Set interface {
	// Watch adds fd or changes what it is watched for: unix.EPOLLIN,
	// unix.EPOLLOUT, or both.
	Watch(fd int, events uint32) error
	Unwatch(fd int)
}
