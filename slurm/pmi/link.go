package pmi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"
)

// connection is the socket to the process manager, inherited or dialled.
type connection interface {
	io.ReadWriteCloser
	SetDeadline(t time.Time) error
}

// link sends requests and reads their answers, one at a time.
type link struct {
	conn    connection
	reader  *bufio.Reader
	framing framing
}

func newLink(conn connection) *link {
	return &link{conn: conn, reader: bufio.NewReaderSize(conn, maxMessageBytes), framing: lineFraming{}}
}

func (l *link) send(m message) error {
	b, err := l.framing.encode(m)
	if err != nil {
		return err
	}
	if _, err := l.conn.Write(b); err != nil {
		return systemError(err)
	}
	return nil
}

func (l *link) receive() (message, error) {
	m, err := l.framing.decode(l.reader)
	if err != nil {
		return m, systemError(err)
	}
	return m, nil
}

// exchange sends a request and reads the answer, which must be the one named.
func (l *link) exchange(answer string, m message) (message, error) {
	if err := l.send(m); err != nil {
		return message{}, err
	}
	got, err := l.receive()
	if err != nil {
		return got, err
	}
	if got.cmd != answer {
		return got, fmt.Errorf("%w: %s where %s belongs", ErrProtocol, excerpt(got.String()), answer)
	}
	return got, nil
}

// call is exchange for requests that succeed with rc=0 or without rc.
func (l *link) call(answer string, m message) (message, error) {
	got, err := l.exchange(answer, m)
	if err != nil {
		return got, err
	}
	if rc, ok := got.get("rc"); ok && rc != "0" {
		return got, fmt.Errorf("%w: %s", ErrRefused, excerpt(got.String()))
	}
	return got, nil
}

// greet agrees on the protocol version.
func (l *link) greet(version, subversion int) error {
	v := strconv.Itoa(version)
	m, err := l.call("response_to_init", newMessage("init", "pmi_version", v, "pmi_subversion", strconv.Itoa(subversion)))
	if err != nil {
		return err
	}
	if got, _ := m.get("pmi_version"); got != v {
		return fmt.Errorf("%w: the server speaks PMI-%s, not PMI-%d", ErrRefused, got, version)
	}
	return nil
}

// identify tells a server reached over PMI_PORT who is calling; it answers with
// the rank and the size, which the environment does not have.
func (l *link) identify(id int) (rank, size int, err error) {
	if _, err := l.exchange("initack", newMessage("initack", "pmiid", strconv.Itoa(id))); err != nil {
		return 0, 0, err
	}
	rank, size = -1, -1
	for range 3 { // size, rank, debug
		m, err := l.receive()
		if err != nil {
			return 0, 0, err
		}
		if m.cmd != "set" {
			return 0, 0, fmt.Errorf("%w: %s where a setting belongs", ErrProtocol, excerpt(m.String()))
		}
		for _, s := range []struct {
			key string
			to  *int
		}{{"rank", &rank}, {"size", &size}} {
			if _, ok := m.get(s.key); ok {
				if *s.to, err = number(m, s.key); err != nil {
					return 0, 0, fmt.Errorf("%w: %s", ErrProtocol, excerpt(m.String()))
				}
			}
		}
	}
	return rank, size, nil
}

// systemError turns what the system says into the package's words.
func systemError(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		return ErrLost
	}
	return err
}
