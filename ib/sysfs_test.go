package ib

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// makeHost builds a tree like that of a host with two single-port InfiniBand
// adapters, one of them without a cable, a two-port one, and a software device on
// an Ethernet interface.
func makeHost(t *testing.T) *Host {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string) {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	port := func(device string, n int, state, physical, layer, rate, lid string) {
		dir := fmt.Sprintf("sys/class/infiniband/%s/ports/%d/", device, n)
		write(dir+"state", state)
		write(dir+"phys_state", physical)
		write(dir+"link_layer", layer)
		write(dir+"rate", rate)
		write(dir+"lid", lid)
	}
	net := func(name, kind, devPort, flags string, device string) {
		dir := "sys/class/net/" + name + "/"
		write(dir+"type", kind)
		write(dir+"dev_port", devPort)
		write(dir+"flags", flags)
		if device != "" {
			write("sys/class/infiniband/"+device+"/device/net/"+name+"/type", kind)
		}
	}
	port("mlx5_0", 1, "4: ACTIVE", "5: LinkUp", "InfiniBand", "100 Gb/sec (4X EDR)", "0x1a")
	port("mlx5_10", 1, "1: DOWN", "3: Disabled", "InfiniBand", "10 Gb/sec (4X SDR)", "0xffff")
	port("mlx4_0", 1, "1: DOWN", "2: Polling", "InfiniBand", "40 Gb/sec (4X QDR)", "0x0")
	port("mlx4_0", 2, "4: ACTIVE", "5: LinkUp", "InfiniBand", "56 Gb/sec (4X FDR)", "0x2b")
	port("rxe0", 1, "4: ACTIVE", "5: LinkUp", "Ethernet", "2.5 Gb/sec (1X SDR)", "0x0")
	write("sys/class/infiniband/rxe0/parent", "eth0")
	write("sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "eth0")
	write("sys/class/infiniband/mlx5_0/hca_type", "MT4123")
	write("sys/class/infiniband/mlx5_0/fw_ver", "20.31.1014")
	write("sys/class/infiniband/mlx5_0/node_guid", "b859:9f03:00d4:1234")
	net("ib0", "32", "0", "0x1003", "mlx5_0")
	net("ib0.8001", "32", "0", "0x1003", "mlx5_0")
	net("ib1", "32", "0", "0x1002", "mlx4_0")
	net("ib2", "32", "1", "0x1003", "mlx4_0")
	net("eth0", "1", "0", "0x1003", "")
	net("lo", "772", "0", "0x9", "")
	for i, device := range []string{"mlx5_0", "mlx4_0", "rxe0"} {
		name := fmt.Sprintf("uverbs%d", i)
		write("sys/class/infiniband_verbs/"+name+"/ibdev", device)
		write("dev/infiniband/"+name, "")
	}
	return &Host{Root: root, Name: "n1", Addresses: table(entry("lo", "127.0.0.1"), entry("ib0", "10.1.0.1"), entry("ib2", "10.1.2.1")).Addresses}
}

func TestDevices(t *testing.T) {
	h := makeHost(t)
	devices, err := h.Devices()
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, d := range devices {
		verbs := strings.TrimPrefix(d.Verbs, h.Root)
		fmt.Fprintf(&got, "%s type=%s fw=%s guid=%s verbs=%s\n", d.Name, d.Type, d.Firmware, d.GUID, verbs)
		for _, p := range d.Ports {
			fmt.Fprintf(&got, " %d %s %s %s %q lid=%d active=%v", p.Number, p.State, p.Physical, p.LinkLayer, p.Rate, p.LID, p.Active())
			for _, i := range p.Interfaces {
				fmt.Fprintf(&got, " %s(ipoib=%v up=%v)", i.Name, i.IPoIB, i.Up)
			}
			got.WriteByte('\n')
		}
	}
	want := `mlx4_0 type= fw= guid= verbs=/dev/infiniband/uverbs1
 1 DOWN Polling InfiniBand "40 Gb/sec (4X QDR)" lid=0 active=false ib1(ipoib=true up=false)
 2 ACTIVE LinkUp InfiniBand "56 Gb/sec (4X FDR)" lid=43 active=true ib2(ipoib=true up=true)
mlx5_0 type=MT4123 fw=20.31.1014 guid=b859:9f03:00d4:1234 verbs=/dev/infiniband/uverbs0
 1 ACTIVE LinkUp InfiniBand "100 Gb/sec (4X EDR)" lid=26 active=true ib0(ipoib=true up=true) ib0.8001(ipoib=true up=true)
mlx5_10 type= fw= guid= verbs=
 1 DOWN Disabled InfiniBand "10 Gb/sec (4X SDR)" lid=65535 active=false
rxe0 type= fw= guid= verbs=/dev/infiniband/uverbs2
 1 ACTIVE LinkUp Ethernet "2.5 Gb/sec (1X SDR)" lid=0 active=true eth0(ipoib=false up=true)
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
}

func TestSurvey(t *testing.T) {
	h := makeHost(t)
	s := h.Survey()
	if got := strings.Join(s.Usable(), " "); got != "mlx4_0:2 mlx5_0:1 rxe0:1" {
		t.Errorf("usable: %s", got)
	}
	if err := s.Err(); err != nil {
		t.Error(err)
	}
	for _, line := range []string{
		"yes  RDMA devices in " + h.Root + "/sys/class/infiniband: mlx4_0, mlx5_0 MT4123 (firmware 20.31.1014, GUID b859:9f03:00d4:1234), mlx5_10, rxe0",
		"no   port 1 of mlx4_0: DOWN (Polling), InfiniBand, 40 Gb/sec (4X QDR), LID 0, interface ib1",
		"yes  port 1 of mlx5_0: ACTIVE (LinkUp), InfiniBand, 100 Gb/sec (4X EDR), LID 26, interface ib0, interface ib0.8001",
		"no   access to mlx5_10 in " + h.Root + "/dev/infiniband: no device file; kernel module ib_uverbs is not loaded",
		"yes  IPoIB interfaces in " + h.Root + "/sys/class/net: ib0 10.1.0.1, ib0.8001 without IPv4 address, ib1 without IPv4 address (down), ib2 10.1.2.1",
		"memory that may be locked (ulimit -l): ",
	} {
		if !strings.Contains(s.String(), line) {
			t.Errorf("no line %q in\n%s", line, s)
		}
	}
}

// Without devices, and with devices whose ports are all down or out of reach, the
// error says what was looked for and found.
func TestSurveyFindsNothing(t *testing.T) {
	empty := &Host{Root: t.TempDir(), Name: "n1", Addresses: table().Addresses}
	s := empty.Survey()
	if err := s.Err(); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "none; no adapter, or its driver is not loaded") {
		t.Errorf("%v", err)
	}
	if devices, err := empty.Devices(); len(devices) != 0 || err != nil {
		t.Errorf("%v, %v", devices, err)
	}
	h := makeHost(t)
	for _, name := range []string{"mlx4_0", "rxe0"} {
		if err := os.RemoveAll(filepath.Join(h.Root, "sys/class/infiniband", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(h.Root, "dev/infiniband/uverbs0")); err != nil {
		t.Fatal(err)
	}
	s = h.Survey()
	if err := s.Err(); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "uverbs0: no such file or directory") || !strings.Contains(err.Error(), "yes  port 1 of mlx5_0") {
		t.Errorf("%v", err)
	}
}
