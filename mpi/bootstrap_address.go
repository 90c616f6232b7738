package mpi

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/internal/wire"
)

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// published is the address of this rank that its peers connect to, and why it
// is that one. All listeners of a rank but the first one of position 0 (zeroPlace) are on it.
func published(ctx context.Context, cfg *Config, l *origin) (addr netip.Addr, why string, err error) {
	if cfg.AddressRule != "" {
		rule, err := ib.ParseRule(cfg.AddressRule, nil)
		var text string
		if err == nil {
			text, err = rule.Own(l.host)
		}
		if err == nil {
			addr, err = wire.Resolve(ctx, text)
		}
		if err == nil && addr.IsLoopback() && !l.allHere() {
			// The host's name may lead to loopback in the host's own table: see ordinary. A rule that names an
			// interface means no other.
			if rule.String() == "hostname" {
				addr, why, err = ordinary(ctx, l.host)
				return addr, "address rule hostname: " + why, err
			}
			err = fmt.Errorf("address rule %s gives %s, where ranks on other hosts cannot reach this one (%s)", rule, addr, l.host)
		}
		if err != nil {
			return addr, "", noPlace(ctx, err)
		}
		return addr, fmt.Sprintf("address rule %s", rule), nil
	}
	if l.kind == ByFisterra && l.root != "" {
		// The launcher's own choice: loopback when all ranks are on its host.
		if root, err := netip.ParseAddrPort(l.root); err == nil && (root.Addr().IsLoopback() || l.rank == 0) {
			return root.Addr(), "as the launcher's", nil
		}
	}
	if l.allHere() && l.size > 0 {
		return loopback, "all ranks are on this host", nil
	}
	if addr, why, err = ordinary(ctx, l.host); err != nil {
		err = noPlace(ctx, err)
	}
	return addr, why, err
}

// ordinary is the address that a host's name has. Names that stand for loopback in the
// host's own table (a custom of some distributions) are passed over for the
// first address of an interface that is up.
func ordinary(ctx context.Context, host string) (netip.Addr, string, error) {
	addr, err := wire.Resolve(ctx, host)
	if err == nil && !addr.IsLoopback() {
		return addr, "address of " + host, nil
	}
	interfaces, ierr := net.Interfaces()
	if ierr != nil {
		return addr, "", ierr
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			if network, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(network.IP); ok && ip.Unmap().Is4() && ip.Unmap().IsGlobalUnicast() {
					return ip.Unmap(), fmt.Sprintf("interface %s, since the name %q leads to no address that others can reach", i.Name, host), nil
				}
			}
		}
	}
	if err == nil {
		return addr, "loopback: this host has no other address", nil
	}
	return addr, "", fmt.Errorf("address of host %q: %w", host, err)
}

// noPlace is the error of a rank that has no place where the others could reach it. If ctx has ended, it wraps ctx's cause, too.
func noPlace(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("mpi: %w: %w", ErrTransport, err)
}

// shortHostname is this host's name as Slurm would write it.
func shortHostname() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	short, _, _ := strings.Cut(name, ".")
	return short
}
