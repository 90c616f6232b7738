package ps

import (
	"log/slog"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// allocator hands out memory for messages from outside the Go heap (mpi.Alloc), which a network may register and
// other ranks of the host may map. It grows by whole chunks, since each chunk takes a file descriptor of the
// process.
type allocator struct {
	comm   *mpi.Comm
	log    *slog.Logger
	chunks [][]byte
	rest   []byte
	failed bool
}

const (
	chunkBytes = 4 << 20
	// Each piece that is handed out begins on a cache line of its own.
	allocAlign = 64
)

// bytes returns n zeroed bytes that may be viewed as numbers. Short pieces, which are copied into frames, come from
// the Go heap, and so does everything once mpi.Alloc has failed.
func (a *allocator) bytes(n int) []byte {
	if n <= inlineBytes || a.failed {
		return aligned(n)
	}
	if len(a.rest) < n {
		chunk, err := mpi.Alloc[byte](a.comm, max(n, chunkBytes))
		if err != nil {
			a.failed = true
			a.log.Warn("no memory outside the Go heap; messages are sent from inside", "bytes", n, "error", err)
			return aligned(n)
		}
		a.chunks = append(a.chunks, chunk)
		a.rest = chunk
	}
	b := a.rest[:n:n]
	a.rest = a.rest[min(len(a.rest), (n+allocAlign-1)/allocAlign*allocAlign):]
	return b
}

// free gives everything back. Nothing of it may be in use any more.
func (a *allocator) free() {
	for _, c := range a.chunks {
		if err := mpi.Free(a.comm, c); err != nil {
			a.log.Warn("memory kept", "error", err)
		}
	}
	a.chunks, a.rest = nil, nil
}
