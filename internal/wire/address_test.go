package wire

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestPreferred(t *testing.T) {
	for _, c := range []struct{ found, want []string }{
		{[]string{"192.168.3.7", "10.1.0.7"}, []string{"192.168.3.7", "10.1.0.7"}},
		{[]string{"127.0.1.1", "172.16.0.1"}, []string{"172.16.0.1"}}, // the host's own table has a line of its own for it
		{[]string{"fd00::7", "192.168.3.7", "::1"}, []string{"192.168.3.7"}},
		{[]string{"::ffff:192.168.3.7", "fd00::7", "10.1.0.7"}, []string{"192.168.3.7", "10.1.0.7"}},
		{[]string{"::1", "127.0.1.1", "127.0.0.1"}, []string{"127.0.1.1", "127.0.0.1"}},
		{[]string{"::1", "fd00::8", "fd00::7"}, []string{"fd00::8", "fd00::7"}},
	} {
		var found []netip.Addr
		for _, text := range c.found {
			found = append(found, netip.MustParseAddr(text))
		}
		if got := preferred(found); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v of %v, want %v", got, c.found, c.want)
		}
	}
}
