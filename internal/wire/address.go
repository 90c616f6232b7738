package wire

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Resolve is the address that a host's name, or an address as text, stands for on all ranks. Of several addresses it is
// the lowest, since name servers give them in rotating order: of IPv4 before IPv6, and of either one of loopback only if
// there is no other.
func Resolve(ctx context.Context, host string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap(), nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	if len(found) == 0 {
		return netip.Addr{}, fmt.Errorf("the name %q has no address", host)
	}
	return preferred(found), nil
}

// preferred is the address that all ranks take of a name's, in whatever order each has them.
func preferred(found []netip.Addr) netip.Addr {
	unlike := func(a netip.Addr) (n int) {
		if !a.Is4() {
			n += 2
		}
		if a.IsLoopback() {
			n++
		}
		return n
	}
	return slices.MinFunc(found, func(a, b netip.Addr) int {
		a, b = a.Unmap(), b.Unmap()
		return cmp.Or(unlike(a)-unlike(b), a.Compare(b))
	}).Unmap()
}
