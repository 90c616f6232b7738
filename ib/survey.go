package ib

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Finding is one thing looked for on a host.
type Finding struct {
	Looked string // what for and where
	Found  string // what was there
	OK     bool   // as RDMA needs it
}

// Survey is what a host has for InfiniBand, and what was looked for. Its text is that of the error where InfiniBand
// is asked for and cannot be had.
type Survey struct {
	Findings []Finding
	Devices  []Device
	usable   []string
}

// Survey looks for what RDMA from a user program needs: a device, a port that
// carries traffic, access to the device's file, memory that may be locked; and for
// IPoIB interfaces, which TCP can use without any of these.
func (h *Host) Survey() *Survey {
	s := &Survey{}
	s.devices(h)
	s.ports(h)
	s.memory()
	s.ipoib(h)
	return s
}

// Usable lists the ports that RDMA can use, as "mlx5_0:1".
func (s *Survey) Usable() []string { return s.usable }

// Err is nil if some port is usable, else ErrNoDevice with all findings.
func (s *Survey) Err() error {
	if len(s.usable) > 0 {
		return nil
	}
	return &Error{Err: ErrNoDevice, Detail: "no usable InfiniBand device; looked for\n" + s.String()}
}

// String has one line per finding.
func (s *Survey) String() string {
	var b strings.Builder
	for i, f := range s.Findings {
		if i > 0 {
			b.WriteByte('\n')
		}
		mark := "no "
		if f.OK {
			mark = "yes"
		}
		fmt.Fprintf(&b, "  %s  %s: %s", mark, f.Looked, f.Found)
	}
	return b.String()
}

func (s *Survey) add(ok bool, looked, format string, args ...any) {
	s.Findings = append(s.Findings, Finding{looked, fmt.Sprintf(format, args...), ok})
}

func (s *Survey) good(looked, format string, args ...any) { s.add(true, looked, format, args...) }

func (s *Survey) bad(looked, format string, args ...any) { s.add(false, looked, format, args...) }

func (s *Survey) devices(h *Host) {
	looked := "RDMA devices in " + h.path("sys/class/infiniband")
	var err error
	s.Devices, err = h.Devices()
	switch {
	case err != nil:
		s.bad(looked, "%v", err)
	case len(s.Devices) == 0:
		s.bad(looked, "none; no adapter, or its driver is not loaded")
	default:
		names := make([]string, len(s.Devices))
		for i, d := range s.Devices {
			names[i] = d.String()
		}
		s.good(looked, "%s", strings.Join(names, ", "))
	}
}

func (s *Survey) ports(h *Host) {
	for i := range s.Devices {
		d := &s.Devices[i]
		access := s.access(d, h)
		for k := range d.Ports {
			p := &d.Ports[k]
			text := fmt.Sprintf("%s (%s), %s, %s", p.State, p.Physical, p.LinkLayer, p.Rate)
			if p.LinkLayer == "InfiniBand" {
				text += fmt.Sprintf(", LID %d", p.LID)
			}
			for _, i := range p.Interfaces {
				text += ", interface " + i.Name
			}
			s.add(p.Active(), fmt.Sprintf("port %d of %s", p.Number, d.Name), "%s", text)
			if access && p.Active() {
				s.usable = append(s.usable, fmt.Sprintf("%s:%d", d.Name, p.Number))
			}
		}
	}
}

// access looks at the device file as this user.
func (s *Survey) access(d *Device, h *Host) bool {
	looked := "access to " + d.Name + " in " + h.path("dev/infiniband")
	if d.Verbs == "" {
		s.bad(looked, "no device file; kernel module ib_uverbs is not loaded")
		return false
	}
	if err := unix.Access(d.Verbs, unix.R_OK|unix.W_OK); err != nil {
		s.bad(looked, "%s: %v", d.Verbs, err)
		return false
	}
	s.good(looked, "%s can be read and written", d.Verbs)
	return true
}

// memory looks at how much this process may lock; RDMA locks its buffers.
func (s *Survey) memory() {
	const looked = "memory that may be locked (ulimit -l)"
	const enough = 64 << 20
	var limit unix.Rlimit
	switch err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); {
	case err != nil:
		s.bad(looked, "%v", err)
	case limit.Cur == unix.RLIM_INFINITY:
		s.good(looked, "unlimited")
	default:
		s.add(limit.Cur >= enough, looked, "%d KiB", limit.Cur>>10)
	}
}

func (s *Survey) ipoib(h *Host) {
	looked := "IPoIB interfaces in " + h.path("sys/class/net")
	found, err := h.IPoIB()
	if err != nil {
		s.bad(looked, "%v", err)
		return
	}
	if len(found) == 0 {
		s.bad(looked, "none")
		return
	}
	all, err := h.addresses()
	if err != nil {
		s.bad(looked, "%v", err)
		return
	}
	ok := false
	texts := make([]string, len(found))
	for i, f := range found {
		texts[i] = f.Name + " without IPv4 address"
		for _, a := range all {
			if a.Label == f.Name {
				texts[i] = f.Name + " " + a.Address.String()
				ok = ok || f.Up
				break
			}
		}
		if !f.Up {
			texts[i] += " (down)"
		}
	}
	s.add(ok, looked, "%s", strings.Join(texts, ", "))
}
