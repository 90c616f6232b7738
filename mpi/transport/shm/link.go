package shm

import (
	"net"

	"golang.org/x/sys/unix"
)

// link is what two ranks share.
type link struct {
	mem     []byte        // the pair's segment
	memory  int           // its memfd
	board   []byte        // the peer's
	bell    int           // the peer's
	conn    *net.UnixConn // closed with the link, but never nil: attend and Import use it at any time
	pid     int
	vm      bool
	path    string // how large messages go, in words
	sharing sharing
	asked   chan struct{} // has an element for each question that the peer has yet to answer
	ended   chan struct{} // closed at the end of the socket, which is the peer's
	failed  chan struct{} // closed when fault says why this rank has given the socket up
	fault   error
}

func newLink(conn *net.UnixConn) *link {
	return &link{memory: -1, bell: -1, conn: conn, asked: make(chan struct{}, mostAsked), ended: make(chan struct{}), failed: make(chan struct{})}
}

// mostAsked bounds the questions that a peer has yet to answer, including those whose asker no longer waits. So neither
// questions nor answers fill the socket, which would make one rank take the other for lost.
const mostAsked = 64

// heard makes room for another question, since one has been answered.
func (l *link) heard() {
	select {
	case <-l.asked:
	default: // the peer answers what nobody has asked
	}
}

// close gives back what was shared with the peer. Nothing but the socket may be in use.
func (l *link) close() {
	l.conn.Close()
	l.sharing.close()
	for _, mem := range [][]byte{l.mem, l.board} {
		if mem != nil {
			Unmap(mem)
		}
	}
	for _, fd := range []int{l.memory, l.bell} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	l.mem, l.board, l.memory, l.bell = nil, nil, -1, -1
}
