package wire

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Resolve is the address to take of a host's name, or of an address as text: the first of ResolveAll.
func Resolve(ctx context.Context, host string) (netip.Addr, error) {
	all, err := ResolveAll(ctx, host)
	if err != nil {
		return netip.Addr{}, err
	}
	return all[0], nil
}

// ResolveAll are the addresses that a host's name, or an address as text, stands for, at least one: of IPv4 if there are
// any, and of loopback only if there are no others. They are in the order of the host's table or name server, which may
// be another on another host.
func ResolveAll(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the name %q has no address", host)
	}
	return preferred(found), nil
}

// preferred are those of a name's addresses that other hosts are most likely to reach.
func preferred(found []netip.Addr) []netip.Addr {
	for i := range found {
		found[i] = found[i].Unmap()
	}
	unlike := func(a netip.Addr) (n int) {
		if !a.Is4() {
			n += 2
		}
		if a.IsLoopback() {
			n++
		}
		return n
	}
	best := unlike(slices.MinFunc(found, func(a, b netip.Addr) int { return unlike(a) - unlike(b) }))
	return slices.DeleteFunc(found, func(a netip.Addr) bool { return unlike(a) > best })
}
