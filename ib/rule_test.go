package ib

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestCESGAFT2(t *testing.T) {
	rule, err := ParseRule("cesga-ft2", nil)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{
		"c7147": "172.28.71.47", "c7007": "172.28.70.7", "c6601": "172.28.66.1", "c66255": "172.28.66.255", "C000": "172.28.0.0",
	} {
		got, err := rule.Address(host)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", host, got, err, want)
		}
		if own, err := rule.Own(host); own != got || err != nil {
			t.Errorf("%s: own address %s, %v", host, own, err)
		}
	}
	for host, says := range map[string]string{
		"": "", "node01": "want a letter", "c66": "want a letter", "c6601.ft2.cesga.es": "want a letter", "c12345": "octet 345 is over 255",
		"c66256": "octet 256 is over 255", "66012": "want a letter", "c6601a": "want a letter", "c-601": "want a letter", "c1234567": "want a letter",
	} {
		_, err := rule.Address(host)
		if !errors.Is(err, ErrHostName) || !strings.Contains(err.Error(), "cesga-ft2") || !strings.Contains(err.Error(), host) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", host, err)
		}
	}
}

func TestCESGAPrefix(t *testing.T) {
	rule, err := ParseRule("cesga-ft2:10.1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := rule.Address("c6601"); got != "10.1.66.1" || err != nil || rule.String() != "cesga-ft2:10.1" {
		t.Errorf("%s, %v by %s", got, err, rule)
	}
	for _, prefix := range []string{"", "172", "172.28.1", "172.256", "172.-1", "172.028", "a.b", "172.28."} {
		if _, err := ParseRule("cesga-ft2:"+prefix, nil); !errors.Is(err, ErrRule) || !strings.Contains(err.Error(), "first two octets") {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
}

func table(addresses ...InterfaceAddress) *Host {
	return &Host{Name: "n1", Addresses: func() ([]InterfaceAddress, error) { return addresses, nil }}
}

func entry(label, address string) InterfaceAddress {
	device, _, _ := strings.Cut(label, ":")
	return InterfaceAddress{Label: label, Interface: device, Address: netip.MustParseAddr(address), Up: true}
}

func TestInterfaceRule(t *testing.T) {
	down := entry("ib3", "10.1.3.1")
	down.Up = false
	unplugged := entry("eth0", "10.4.0.1")
	unplugged.NoCarrier = true
	second := entry("hsn0", "10.2.0.2")
	second.Secondary = true
	h := table(
		entry("lo", "127.0.0.1"), entry("xib0", "10.0.9.1"), entry("ib0:1", "10.0.8.1"), entry("ib10", "10.1.10.1"), entry("ib2", "10.1.2.1"),
		down, second, entry("hsn0", "10.2.0.1"), entry("ib0", "10.1.0.1"), entry("ibp175s0", "10.3.0.1"),
		unplugged, entry("eth1", "10.4.1.1"),
	)
	for text, want := range map[string]string{
		"ib0": "10.1.0.1", "ib0:1": "10.0.8.1", "ib2": "10.1.2.1", "ib*": "10.1.0.1", "ib[12]*": "10.1.2.1", "xib0": "10.0.9.1",
		"hsn0": "10.2.0.1", "ibp*": "10.3.0.1", "lo": "127.0.0.1", "ib0:*": "10.0.8.1", "eth*": "10.4.1.1", "eth0": "10.4.0.1",
	} {
		rule, err := ParseRule(text, h)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := rule.Address("n1")
		if err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"ib3", "ib1", "b0", "ib", "wlan*"} {
		rule, err := ParseRule(text, h)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := rule.Own("n1"); !errors.Is(err, ErrNoAddress) || !strings.Contains(err.Error(), "ib3 (10.1.3.1, down)") {
			t.Errorf("%s: %s, %v; want ErrNoAddress that lists what there is", text, got, err)
		}
	}
	rule, err := ParseRule("ib0", h)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := rule.Address("n2"); !errors.Is(err, ErrOtherHost) {
		t.Errorf("another host's interface: %s, %v", got, err)
	}
}

func TestParseRuleRefuses(t *testing.T) {
	for _, text := range []string{"", "ib 0", "a/b", "[", "x,y", strings.Repeat("x", 65)} {
		if rule, err := ParseRule(text, nil); !errors.Is(err, ErrRule) || !strings.Contains(err.Error(), "cesga-ft2[:PREFIX], hostname, INTERFACE") {
			t.Errorf("%q: %v, %v", text, rule, err)
		}
	}
	rule, err := ParseRule("hostname", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := rule.Address("node01.example"); got != "node01.example" || err != nil {
		t.Errorf("hostname: %s, %v", got, err)
	}
	if _, err := rule.Own(""); !errors.Is(err, ErrHostName) {
		t.Errorf("hostname of nothing: %v", err)
	}
}

func TestCheckOwn(t *testing.T) {
	h := table(entry("lo", "127.0.0.1"), entry("ib0", "10.0.0.1"))
	for _, own := range []string{"10.0.0.1", "127.0.0.1", "::ffff:10.0.0.1", "n1", "localhost"} {
		if err := h.CheckOwn(own); err != nil {
			t.Errorf("%s: %v", own, err)
		}
	}
	if err := h.CheckOwn("10.0.0.2"); !errors.Is(err, ErrNotLocal) || !strings.Contains(err.Error(), "ib0 (10.0.0.1)") {
		t.Errorf("10.0.0.2: %v", err)
	}
}

// The kernel's own table: every machine has lo with 127.0.0.1.
func TestKernelAddresses(t *testing.T) {
	all, err := kernelAddresses()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(a InterfaceAddress) bool { return a.Label == "lo" })
	if i < 0 || all[i].Address != netip.AddrFrom4([4]byte{127, 0, 0, 1}) || all[i].Bits != 8 || !all[i].Up || all[i].Interface != "lo" {
		t.Fatalf("%+v", all)
	}
	rule, err := ParseRule("lo", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := rule.Own("here"); got != "127.0.0.1" || err != nil {
		t.Errorf("lo: %s, %v", got, err)
	}
	if err := (*Host)(nil).CheckOwn("127.0.0.1"); err != nil {
		t.Error(err)
	}
	if err := (*Host)(nil).CheckOwn("::1"); err != nil {
		t.Logf("no IPv6 loopback here: %v", err)
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add([]byte{2, 24, 0, 0, 1, 0, 0, 0, 8, 0, 2, 0, 10, 0, 0, 1, 8, 0, 3, 0, 'i', 'b', '0', 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		if a, ok := parseAddress(body, nil); ok {
			t.Errorf("an unknown interface gave %+v", a)
		}
	})
}

func FuzzRule(f *testing.F) {
	f.Add("cesga-ft2:10.1", "c7147")
	f.Add("ib*", "n1")
	h := table(entry("ib0", "10.0.0.1"))
	f.Fuzz(func(t *testing.T, text, host string) {
		rule, err := ParseRule(text, h)
		if err != nil {
			return
		}
		again, err := ParseRule(rule.String(), h)
		if err != nil || again.String() != rule.String() {
			t.Fatalf("%q is %q is %v, %v", text, rule, again, err)
		}
		if a, err := rule.Address(host); err == nil && strings.HasPrefix(text, "cesga-ft2") {
			if p, err := netip.ParseAddr(a); err != nil || !p.Is4() {
				t.Fatalf("%q of %q is %q", text, host, a)
			}
		}
	})
}
