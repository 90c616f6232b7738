package shm

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// host is what two ranks must have in common to meet through memory: the
// running kernel, the network namespace (abstract socket names live in one),
// and the user.
type host struct {
	boot    [16]byte // /proc/sys/kernel/random/boot_id
	network uint64   // inode of the network namespace
	users   uint64   // inode of the user namespace
	uid     uint32
}

// address is what a rank publishes: its host and the name of its socket, an
// abstract one, so that nothing is left behind whatever way the rank ends.
type address struct {
	host host
	name [16]byte
}

const (
	addressVersion = 1
	addressBytes   = 1 + 16 + 8 + 8 + 4 + 16
)

// thisHost finds out where this process runs.
func thisHost() (h host, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return h, fmt.Errorf("the kernel's boot id: %w", err)
	}
	id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(boot)), "-", ""))
	if err != nil || len(id) != len(h.boot) {
		return h, fmt.Errorf("the kernel's boot id %q is not a UUID", strings.TrimSpace(string(boot)))
	}
	copy(h.boot[:], id)
	for _, ns := range []struct {
		name  string
		inode *uint64
	}{{"net", &h.network}, {"user", &h.users}} {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+ns.name, &st); err != nil {
			return h, fmt.Errorf("this process's %s namespace: %w", ns.name, err)
		}
		*ns.inode = st.Ino
	}
	h.uid = uint32(os.Getuid())
	return h, nil
}

func newAddress() (a address, err error) {
	a.host, err = thisHost()
	rand.Read(a.name[:])
	return a, err
}

// socket is the abstract name, in Go's notation.
func (a address) socket() string { return "@fisterra-" + hex.EncodeToString(a.name[:]) }

func (a address) encode() []byte {
	b := append([]byte{addressVersion}, a.host.boot[:]...)
	b = binary.BigEndian.AppendUint64(b, a.host.network)
	b = binary.BigEndian.AppendUint64(b, a.host.users)
	b = binary.BigEndian.AppendUint32(b, a.host.uid)
	return append(b, a.name[:]...)
}

func parseAddress(b []byte) (a address, err error) {
	if len(b) != addressBytes || b[0] != addressVersion {
		return a, fmt.Errorf("%x is not a shared-memory address: %d bytes, of which the first is %d", b, addressBytes, addressVersion)
	}
	copy(a.host.boot[:], b[1:])
	a.host.network = binary.BigEndian.Uint64(b[17:])
	a.host.users = binary.BigEndian.Uint64(b[25:])
	a.host.uid = binary.BigEndian.Uint32(b[33:])
	copy(a.name[:], b[37:])
	return a, nil
}

// apart says why ranks on h and other cannot meet through memory; nil: perhaps they can.
func (h host) apart(other host) error {
	switch {
	case h.boot != other.boot:
		return fmt.Errorf("it runs on another host (boot id %x, here %x)", other.boot[:4], h.boot[:4])
	case h.network != other.network:
		return fmt.Errorf("it runs in another network namespace of this host (%d, here %d)", other.network, h.network)
	case h.users != other.users:
		return fmt.Errorf("it runs in another user namespace of this host (%d, here %d)", other.users, h.users)
	case h.uid != other.uid:
		return fmt.Errorf("it runs as another user (uid %d, here %d)", other.uid, h.uid)
	}
	return nil
}

// SameHost reports whether ranks that publish these addresses can meet, as far as the addresses tell.
func SameHost(a, b []byte) bool {
	one, err := parseAddress(a)
	other, err2 := parseAddress(b)
	return err == nil && err2 == nil && one.host.apart(other.host) == nil
}

// announce binds a socket that never carries anything. Peers that find it under the rank's name know that the rank lives in
// this kernel and namespace. Equal boot ids alone do not prove that: virtual machines resumed from one snapshot share theirs.
func (a address) announce() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: a.socket()}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind %s: %w", a.socket(), err)
	}
	return fd, nil
}

// present reports whether the rank at a has been announced in this kernel and
// namespace. The rank does not notice.
func (a address) present() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: a.socket()})
	if errors.Is(err, unix.ECONNREFUSED) {
		return errors.New("no process on this host has its socket")
	}
	if err != nil {
		return fmt.Errorf("looking for its socket: %w", err)
	}
	return nil
}
