package ib

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Device is an RDMA device (HCA) as the kernel shows it.
type Device struct {
	Name     string // "mlx5_0"
	Type     string // "MT4123", as hca_type; "" if not told
	Firmware string // "20.31.1014"; "" if not told
	GUID     string // "b859:9f03:00d4:1234"; "" if not told
	// Verbs is the device file for user programs, "/dev/infiniband/uverbs0"; "" when
	// the kernel offers none (module ib_uverbs not loaded).
	Verbs string
	Ports []Port // by number
}

// String names the device, with what the kernel tells of it: "mlx5_0 MT4123 (firmware 20.31.1014, GUID b859:9f03:00d4:1234)".
func (d *Device) String() string {
	text := d.Name
	if d.Type != "" {
		text += " " + d.Type
	}
	var told []string
	if d.Firmware != "" {
		told = append(told, "firmware "+d.Firmware)
	}
	if d.GUID != "" {
		told = append(told, "GUID "+d.GUID)
	}
	if len(told) > 0 {
		text += " (" + strings.Join(told, ", ") + ")"
	}
	return text
}

// Port is one port of a device.
type Port struct {
	Number    int
	State     string // "ACTIVE", "DOWN", "INIT", "ARMED"
	Physical  string // "LinkUp", "Polling", "Disabled"
	LinkLayer string // "InfiniBand" or "Ethernet" (RoCE)
	Rate      string // "100 Gb/sec (4X EDR)"
	LID       int    // 0 on Ethernet
	// Interfaces are the network interfaces over this port: the IPoIB ones of an
	// InfiniBand port, the Ethernet one of a RoCE port.
	Interfaces []Interface
}

// Active reports whether the port carries traffic.
func (p *Port) Active() bool { return p.State == "ACTIVE" }

// Interface is a network interface over an RDMA port.
type Interface struct {
	Name  string
	IPoIB bool // IP over InfiniBand, else Ethernet
	Up    bool
}

// arphrdInfiniBand is the type that sysfs shows for IPoIB interfaces.
const arphrdInfiniBand = "32"

// Limits on what is read, so that a strange tree cannot keep a program busy.
const (
	maxPorts = 256
	maxGIDs  = 1024
)

// path is below the root of this host.
func (h *Host) path(elem ...string) string {
	root := "/"
	if h != nil && h.Root != "" {
		root = h.Root
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

// Devices lists the host's RDMA devices by name. A host without any, or without
// the kernel's RDMA support, has an empty list and no error.
func (h *Host) Devices() ([]Device, error) {
	names, err := list(h.path("sys/class/infiniband"))
	if err != nil {
		return nil, fmt.Errorf("ib: list of devices: %w", err)
	}
	verbs, err := h.verbsFiles()
	if err != nil {
		return nil, err
	}
	var devices []Device
	for _, name := range names {
		dir := h.path("sys/class/infiniband", name)
		d := Device{Name: name, Type: read(dir, "hca_type"), Firmware: read(dir, "fw_ver"), GUID: read(dir, "node_guid"), Verbs: verbs[name]}
		ports, err := list(filepath.Join(dir, "ports"))
		if err != nil {
			return nil, fmt.Errorf("ib: ports of %s: %w", name, err)
		}
		interfaces, err := h.interfacesOf(name)
		if err != nil {
			return nil, err
		}
		for _, p := range ports {
			n, err := strconv.Atoi(p)
			if err != nil || n < 1 || n > maxPorts {
				continue
			}
			d.Ports = append(d.Ports, readPort(filepath.Join(dir, "ports", p), n, interfaces))
		}
		slices.SortFunc(d.Ports, func(a, b Port) int { return a.Number - b.Number })
		devices = append(devices, d)
	}
	slices.SortFunc(devices, func(a, b Device) int { return compareNatural(a.Name, b.Name) })
	return devices, nil
}

// portInterface is an interface and the port it is over, 0 when not known.
type portInterface struct {
	Interface
	port int
}

// interfacesOf finds the network interfaces over a device: those of the same PCI
// function, or for a software device the one it was made on.
func (h *Host) interfacesOf(device string) ([]portInterface, error) {
	dir := h.path("sys/class/infiniband", device)
	names, err := list(filepath.Join(dir, "device", "net"))
	if err != nil {
		return nil, fmt.Errorf("ib: interfaces of %s: %w", device, err)
	}
	if parent := read(dir, "parent"); parent != "" && !slices.Contains(names, parent) {
		names = append(names, parent)
	}
	var all []portInterface
	for _, name := range names {
		net := h.path("sys/class/net", name)
		i := portInterface{Interface: Interface{
			Name:  name,
			IPoIB: read(net, "type") == arphrdInfiniBand,
			Up:    isUp(read(net, "flags")),
		}}
		// dev_port counts from 0; older kernels have dev_id for the same.
		for _, file := range []string{"dev_port", "dev_id"} {
			if n, ok := readInt(net, file); ok {
				i.port = max(i.port, n+1)
			}
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b portInterface) int { return compareNatural(a.Name, b.Name) })
	return all, nil
}

// isUp reads the administrative state from an interface's flags ("0x1003").
func isUp(flags string) bool {
	n, err := strconv.ParseUint(flags, 0, 32)
	return err == nil && n&1 != 0
}

func readPort(dir string, number int, interfaces []portInterface) Port {
	p := Port{
		Number:    number,
		State:     afterColon(read(dir, "state")),
		Physical:  afterColon(read(dir, "phys_state")),
		LinkLayer: read(dir, "link_layer"),
		Rate:      read(dir, "rate"),
	}
	p.LID, _ = readInt(dir, "lid")
	if p.LinkLayer == "" { // kernels before 2.6.38 knew only InfiniBand
		p.LinkLayer = "InfiniBand"
	}
	over := make(map[string]bool) // interfaces that the port's global ids name, as those of Ethernet do
	indices, _ := list(filepath.Join(dir, "gid_attrs", "ndevs"))
	for _, index := range indices[:min(len(indices), maxGIDs)] {
		over[read(dir, "gid_attrs", "ndevs", index)] = true
	}
	for _, i := range interfaces {
		if i.port == number || i.port == 0 || over[i.Name] {
			p.Interfaces = append(p.Interfaces, i.Interface)
		}
	}
	return p
}

// verbsFiles maps devices to their files for user programs.
func (h *Host) verbsFiles() (map[string]string, error) {
	names, err := list(h.path("sys/class/infiniband_verbs"))
	if err != nil {
		return nil, fmt.Errorf("ib: list of verbs devices: %w", err)
	}
	files := make(map[string]string)
	for _, name := range names {
		if device := read(h.path("sys/class/infiniband_verbs"), name, "ibdev"); device != "" {
			files[device] = h.path("dev/infiniband", name)
		}
	}
	return files, nil
}

// IPoIB lists the host's IPoIB interfaces, with or without an address.
func (h *Host) IPoIB() ([]Interface, error) {
	names, err := list(h.path("sys/class/net"))
	if err != nil {
		return nil, fmt.Errorf("ib: list of interfaces: %w", err)
	}
	var found []Interface
	for _, name := range names {
		dir := h.path("sys/class/net", name)
		if read(dir, "type") == arphrdInfiniBand {
			found = append(found, Interface{Name: name, IPoIB: true, Up: isUp(read(dir, "flags"))})
		}
	}
	slices.SortFunc(found, func(a, b Interface) int { return compareNatural(a.Name, b.Name) })
	return found, nil
}

// list names the entries of a directory; one that does not exist is empty.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// read is a file's text without white space around it. The kernel answers some
// attributes that do not apply with an error: they count as empty.
func read(elem ...string) string {
	text, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func readInt(elem ...string) (n int, ok bool) {
	v, err := strconv.ParseInt(read(elem...), 0, 32)
	return int(v), err == nil
}

// afterColon takes "ACTIVE" from "4: ACTIVE".
func afterColon(s string) string {
	if _, after, ok := strings.Cut(s, ":"); ok {
		return strings.TrimSpace(after)
	}
	return s
}
