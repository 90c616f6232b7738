package wire

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// Resolve is the address that a host's name, or an address as text, stands for on all ranks: the first
// IPv4 address of the name, else its first.
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
	for _, a := range found {
		if a.Unmap().Is4() {
			return a.Unmap(), nil
		}
	}
	return found[0].Unmap(), nil
}
