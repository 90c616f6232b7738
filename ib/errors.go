package ib

import (
	"errors"
	"fmt"
)

// What can go wrong with rules and devices.
var (
	// ErrRule: no such rule, or a rule with parameters that cannot be.
	ErrRule = errors.New("bad address rule")
	// ErrHostName: the host's name is not of the form the rule works on.
	ErrHostName = errors.New("host name does not fit the rule")
	// ErrOtherHost: the rule must ask the host itself, and it is another one.
	ErrOtherHost = errors.New("only the host itself can tell")
	// ErrNoAddress: no interface fits, or none that fits has an address.
	ErrNoAddress = errors.New("no address")
	// ErrNotLocal: an address that no interface of this host has.
	ErrNotLocal = errors.New("not an address of this host")
	// ErrNoDevice: no usable InfiniBand device.
	ErrNoDevice = errors.New("no usable InfiniBand device")
)

// Error says which rule failed on which host.
type Error struct {
	Rule   string
	Host   string
	Detail string
	Err    error // one of the package's sentinels
}

func (e *Error) Error() string {
	s := "ib: "
	if e.Rule != "" {
		s += fmt.Sprintf("address rule %s: ", e.Rule)
	}
	if e.Host != "" {
		s += fmt.Sprintf("host %q: ", e.Host)
	}
	if e.Detail != "" {
		return s + e.Detail
	}
	return s + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }
