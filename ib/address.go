package ib

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
)

// Host is where this package looks. The zero value and a nil *Host are the machine
// the program runs on.
type Host struct {
	// Root replaces "/" for sysfs and device files.
	Root string
	// Name replaces the host name.
	Name string
	// Addresses replaces the kernel's table of IPv4 addresses.
	Addresses func() ([]InterfaceAddress, error)
}

// InterfaceAddress is one IPv4 address of a network interface.
type InterfaceAddress struct {
	Label     string // as ifconfig shows it: "ib0", or "ib0:1" for an alias
	Interface string // the device: "ib0"
	Address   netip.Addr
	Bits      int  // length of the network's prefix
	Up        bool // the interface is administratively up
	NoCarrier bool // the interface carries nothing, also if it is up: no cable, or no active port
	Secondary bool // not the first address of its network on the interface
}

func (h *Host) hostname() (string, error) {
	if h != nil && h.Name != "" {
		return h.Name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("ib: this host's name: %w", err)
	}
	// Slurm's node names are short.
	short, _, _ := strings.Cut(name, ".")
	return short, nil
}

func (h *Host) addresses() ([]InterfaceAddress, error) {
	if h != nil && h.Addresses != nil {
		return h.Addresses()
	}
	return kernelAddresses()
}

// CheckOwn reports whether an address or host name is one of this host's: nil if so, else ErrNotLocal, which names
// this host's addresses. A host name is looked up, and one of its addresses must be here.
func (h *Host) CheckOwn(address string) error {
	all, err := h.addresses()
	if err != nil {
		return fmt.Errorf("ib: addresses of this host: %w", err)
	}
	var wanted []netip.Addr
	if a, err := netip.ParseAddr(address); err == nil {
		wanted = append(wanted, a.Unmap())
	} else {
		if own, err := h.hostname(); err == nil && own == address {
			return nil
		}
		ips, err := net.LookupIP(address)
		if err != nil {
			return &Error{Host: address, Err: ErrNotLocal, Detail: err.Error()}
		}
		for _, ip := range ips {
			if a, ok := netip.AddrFromSlice(ip); ok {
				wanted = append(wanted, a.Unmap())
			}
		}
	}
	for _, w := range wanted {
		for _, a := range all {
			if a.Address == w {
				return nil
			}
		}
		if w.Is6() && h.has6(w) {
			return nil
		}
	}
	return &Error{Host: address, Err: ErrNotLocal, Detail: "not an address of this host, which has " + describe(all)}
}

// has6 looks for an IPv6 address, which the IPv4 table does not hold.
func (h *Host) has6(w netip.Addr) bool {
	if h != nil && h.Addresses != nil {
		return false
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == w.WithZone("") {
			return true
		}
	}
	return false
}

// From linux/if_addr.h.
const (
	ifaLocal      = 2
	ifaAddress    = 1
	ifaLabel      = 3
	ifaFSecondary = 1
	sizeofIfAddr  = 8
	sizeofRtAttr  = 4
)

// kernelAddresses asks the kernel for all IPv4 addresses with their labels, which
// package net does not give: an alias ib0:1 would count as ib0 there.
func kernelAddresses() ([]InterfaceAddress, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list of interfaces: %w", err)
	}
	dump, err := syscall.NetlinkRIB(syscall.RTM_GETADDR, syscall.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("table of addresses: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(dump)
	if err != nil {
		return nil, fmt.Errorf("table of addresses: %w", err)
	}
	byIndex := make(map[int]net.Interface, len(interfaces))
	for _, i := range interfaces {
		byIndex[i.Index] = i
	}
	var all []InterfaceAddress
	for _, m := range messages {
		if m.Header.Type != syscall.RTM_NEWADDR {
			continue
		}
		if a, ok := parseAddress(m.Data, byIndex); ok {
			all = append(all, a)
		}
	}
	return all, nil
}

// parseAddress reads the body of an RTM_NEWADDR message: struct ifaddrmsg and its
// attributes.
func parseAddress(body []byte, byIndex map[int]net.Interface) (a InterfaceAddress, ok bool) {
	if len(body) < sizeofIfAddr || body[0] != syscall.AF_INET {
		return a, false
	}
	a.Bits = int(body[1])
	a.Secondary = body[2]&ifaFSecondary != 0
	i, known := byIndex[int(binary.NativeEndian.Uint32(body[4:]))]
	a.Interface, a.Label = i.Name, i.Name
	a.Up = i.Flags&net.FlagUp != 0
	a.NoCarrier = i.Flags&net.FlagRunning == 0
	for rest := body[sizeofIfAddr:]; len(rest) >= sizeofRtAttr; {
		n := int(binary.NativeEndian.Uint16(rest))
		if n < sizeofRtAttr || n > len(rest) {
			return a, false
		}
		value := rest[sizeofRtAttr:n]
		switch binary.NativeEndian.Uint16(rest[2:]) {
		case ifaLocal:
			a.Address, _ = netip.AddrFromSlice(value)
		case ifaAddress: // the peer's on a point-to-point link, else the same
			if !a.Address.IsValid() {
				a.Address, _ = netip.AddrFromSlice(value)
			}
		case ifaLabel:
			a.Label = strings.TrimRight(string(value), "\x00")
		}
		const align = 4 // of attributes
		rest = rest[min(len(rest), (n+align-1)/align*align):]
	}
	return a, known && a.Address.Is4()
}
