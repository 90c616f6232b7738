package mpi

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// answerMunge takes the next connection as a munge daemon would, and answers what is asked for.
func answerMunge(l net.Listener, answer byte, body []byte) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	var asked [mungeHeadBytes]byte
	if _, err := io.ReadFull(conn, asked[:]); err != nil {
		return err
	}
	be := binary.BigEndian
	if _, err := io.ReadFull(conn, make([]byte, be.Uint32(asked[7:]))); err != nil {
		return err
	}
	head := append(be.AppendUint32(nil, mungeMagic), mungeVersion, answer, 0)
	head = be.AppendUint32(head, uint32(len(body)))
	_, err = conn.Write(append(head, body...))
	return err
}

// A daemon whose queue is full at the moment is there: it is asked again until ctx ends.
func TestMungeWithAFullQueue(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: socket})
	}
	if err == nil {
		err = unix.Listen(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for err == nil {
		var conn net.Conn
		if conn, err = net.Dial("unix", socket); err == nil {
			defer conn.Close()
		}
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = (&munge{socket: socket}).encode(ctx, nil)
	end, _ := ctx.Deadline()
	// An attempt may notice the end a little before the context does.
	if left := time.Until(end); !errors.Is(err, syscall.EAGAIN) || left > 20*time.Millisecond {
		t.Errorf("%v, %v before the context ends; want a full queue until then", err, left)
	}
}

// Slurm takes values in quotation marks, and lines of any length.
func TestMungeSocketOfSlurmConf(t *testing.T) {
	const want = "/run/site/munge.socket"
	for name, text := range map[string]string{
		"plain":  "ClusterName=x\nAuthInfo=socket=" + want + "\n",
		"spaces": " authinfo = cred_expire=5,socket=" + want + " # ours",
		"quoted": `AuthInfo="cred_expire=5,socket=` + want + `"`,
		"long":   "NodeName=" + strings.Repeat("node0001,", 10_000) + "node0002\nAuthInfo=socket=" + want + "\n",
	} {
		conf := filepath.Join(t.TempDir(), "slurm.conf")
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := mungeSocketOf(conf); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := mungeSocketOf(filepath.Join(t.TempDir(), "absent")); got != "" {
		t.Errorf("without a file: %q", got)
	}
}

// Uids are 32 bits without a sign, as os.Getuid has them.
func TestMungeUids(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, want := range []uint32{0, 1000, 3_000_000_000} {
		be := binary.BigEndian
		body := append(make([]byte, 2+3+1+4), 4, 127, 0, 0, 1)
		body = be.AppendUint32(append(body, make([]byte, 8)...), want)
		body = append(be.AppendUint32(append(body, make([]byte, 12)...), 2), "hi"...)
		answered := make(chan error, 1)
		go func() { answered <- answerMunge(l, mungeDecoded, body) }()
		uid, payload, err := (&munge{socket: socket}).decode(t.Context(), []byte("cred"))
		if err := errors.Join(err, <-answered); err != nil || uid != int(want) || string(payload) != "hi" {
			t.Errorf("uid %d with %q, %v; want uid %d", uid, payload, err, want)
		}
	}
}

// A daemon that drops a connection is asked again. One that is not there is not waited for.
func TestMungeThatDropsAConnection(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answered := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			conn.Close()
			err = answerMunge(l, mungeEncoded, append([]byte{0, 0, 0, 0, 0, 4}, "cred"...))
		}
		answered <- err
	}()
	if cred, err := (&munge{socket: socket}).encode(t.Context(), nil); string(cred) != "cred" || err != nil {
		t.Errorf("%q, %v", cred, err)
	} else if err := <-answered; err != nil {
		t.Error(err)
	}
	for _, err := range []error{syscall.ENOENT, syscall.ENOTDIR, syscall.EACCES, syscall.ECONNREFUSED} {
		if mungeIsBusy(&net.OpError{Op: "dial", Err: err}) {
			t.Errorf("%v is taken for a busy daemon", err)
		}
	}
}
