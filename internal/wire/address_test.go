package wire

import (
	"net/netip"
	"testing"
)

// Ranks that are given a host's addresses in different order take the same one.
func TestPreferredInAnyOrder(t *testing.T) {
	for _, c := range []struct {
		want  string
		found []string
	}{
		{"10.1.0.7", []string{"192.168.3.7", "10.1.0.7"}},
		{"172.16.0.1", []string{"127.0.1.1", "172.16.0.1"}}, // the host's own table has a line of its own for it
		{"192.168.3.7", []string{"fd00::7", "192.168.3.7", "::1"}},
		{"10.1.0.7", []string{"::ffff:192.168.3.7", "::ffff:10.1.0.7"}},
		{"127.0.0.1", []string{"::1", "127.0.1.1", "127.0.0.1"}},
		{"fd00::7", []string{"fd00::8", "::1", "fd00::7"}},
	} {
		for first := range c.found {
			var found []netip.Addr
			for i := range c.found {
				found = append(found, netip.MustParseAddr(c.found[(first+i)%len(c.found)]))
			}
			if got := preferred(found); got != netip.MustParseAddr(c.want) {
				t.Errorf("%v of %v, want %s", got, found, c.want)
			}
		}
	}
}
