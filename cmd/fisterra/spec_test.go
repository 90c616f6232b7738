package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/ib"
)

// A host answers for itself by its name in the step, whatever it is called otherwise.
func TestSpecTellsItsOwnAddress(t *testing.T) {
	here := &ib.Host{Name: "c7101.ft2.cesga.es", Addresses: func() ([]ib.InterfaceAddress, error) {
		return []ib.InterfaceAddress{{Label: "ib0", Interface: "ib0", Address: netip.MustParseAddr("172.28.71.1"), Up: true}}, nil
	}}
	rule, err := ib.ParseRule("ib0", here)
	if err != nil {
		t.Fatal(err)
	}
	if !onlyHostsKnow(rule, []string{"c7101", "c7102"}) {
		t.Error("the hosts are not asked for what only they know")
	}
	if got := tell(rule, "c7101"); got != (told{Host: "c7101", Address: "172.28.71.1"}) {
		t.Errorf("%+v", got)
	}
	if rule, err = ib.ParseRule("hsn0", here); err != nil {
		t.Fatal(err)
	}
	if got := tell(rule, "c7101"); got.Address != "" || !strings.Contains(got.Error, "hsn0") {
		t.Errorf("%+v", got)
	}
}
