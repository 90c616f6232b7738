package ib

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Rule turns a host into the address that peers connect to.
type Rule interface {
	// String is the text that ParseRule makes the rule from.
	String() string
	// Address is the address of any host, by its name. A rule that must ask the host itself answers for this host
	// only; for any other the error is ErrOtherHost, and the hosts have to exchange what Own says.
	Address(host string) (string, error)
	// Own is this host's address; host is its name.
	Own(host string) (string, error)
}

// RuleNames lists the rules by name, for help texts. Anything else is taken as
// the name of an interface or a pattern of such names.
var RuleNames = []string{"cesga-ft2[:PREFIX]", "hostname", "INTERFACE (ib0, ib*)"}

// ParseRule makes a rule from its text:
//
//	cesga-ft2            letter, two digits, one to three digits: c7147 is 172.28.71.47
//	cesga-ft2:10.1       the same with another prefix of two octets
//	hostname             the host name itself
//	ib0, hsn0, ib*       the IPv4 address of the interface, asked of the kernel of h
//
// A text that is none of these is ErrRule.
func ParseRule(text string, h *Host) (Rule, error) {
	name, parameter, has := strings.Cut(text, ":")
	switch {
	case name == "cesga-ft2":
		if !has {
			parameter = DefaultCESGAPrefix
		}
		return NewCESGAFT2(parameter)
	case text == "hostname":
		return hostname{}, nil
	}
	if !validPattern(text) {
		return nil, &Error{Rule: strconv.Quote(text), Err: ErrRule, Detail: "no such rule; rules are " + strings.Join(RuleNames, ", ")}
	}
	return &interfaceRule{pattern: text, host: h}, nil
}

// hostname leaves the name as it is.
type hostname struct{}

func (hostname) String() string { return "hostname" }

func (hostname) Address(host string) (string, error) {
	if host == "" {
		return "", &Error{Rule: "hostname", Err: ErrHostName, Detail: "an empty host name"}
	}
	return host, nil
}

func (r hostname) Own(host string) (string, error) { return r.Address(host) }

// DefaultCESGAPrefix is the InfiniBand network of Finis Terrae 2.
const DefaultCESGAPrefix = "172.28"

// NewCESGAFT2 makes the rule of Finis Terrae 2, where a node's name tells its
// address on the InfiniBand network: a letter, two digits for the third octet,
// the rest for the fourth (c7147 is 172.28.71.47, c6601 is 172.28.66.1). prefix
// holds the first two octets.
func NewCESGAFT2(prefix string) (Rule, error) {
	a, b, ok := strings.Cut(prefix, ".")
	if !ok || octet(a) < 0 || octet(b) < 0 {
		return nil, &Error{Rule: "cesga-ft2", Err: ErrRule, Detail: fmt.Sprintf("prefix %q: want the first two octets of an IPv4 address, as in %s", prefix, DefaultCESGAPrefix)}
	}
	return cesgaFT2(prefix), nil
}

type cesgaFT2 string

func (r cesgaFT2) String() string {
	if r == DefaultCESGAPrefix {
		return "cesga-ft2"
	}
	return "cesga-ft2:" + string(r)
}

func (r cesgaFT2) Address(host string) (string, error) {
	fail := func(format string, args ...any) (string, error) {
		return "", &Error{Rule: r.String(), Host: host, Err: ErrHostName, Detail: fmt.Sprintf(format, args...)}
	}
	if len(host) < 4 || len(host) > 6 || !isLetter(host[0]) || strings.Trim(host[1:], "0123456789") != "" {
		return fail("want a letter, two digits and one to three digits, as in c7147")
	}
	third, fourth := number(host[1:3]), number(host[3:])
	if fourth > 255 {
		return fail("%s.%d.%d is no address: octet %d is over 255", string(r), third, fourth, fourth)
	}
	return fmt.Sprintf("%s.%d.%d", string(r), third, fourth), nil
}

func (r cesgaFT2) Own(host string) (string, error) { return r.Address(host) }

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// number reads a few digits.
func number(digits string) int {
	n := 0
	for _, c := range []byte(digits) {
		n = 10*n + int(c-'0')
	}
	return n
}

// octet reads 0 to 255, or -1.
func octet(s string) int {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || s != strconv.FormatUint(n, 10) {
		return -1
	}
	return int(n)
}

// interfaceRule asks the kernel for an interface's IPv4 address.
type interfaceRule struct {
	pattern string
	host    *Host
}

func (r *interfaceRule) String() string { return r.pattern }

func (r *interfaceRule) Address(host string) (string, error) {
	own, err := r.host.hostname()
	if err != nil {
		return "", err
	}
	if host != own {
		return "", &Error{Rule: r.pattern, Host: host, Err: ErrOtherHost,
			Detail: "an interface's address must be asked of the host itself (this is " + own + "); start one task per host and let them exchange it, or list the addresses in TFSERVER"}
	}
	return r.Own(host)
}

func (r *interfaceRule) Own(host string) (string, error) {
	all, err := r.host.addresses()
	if err != nil {
		return "", &Error{Rule: r.pattern, Host: host, Err: ErrNoAddress, Detail: err.Error()}
	}
	fits := slices.DeleteFunc(slices.Clone(all), func(a InterfaceAddress) bool {
		return !a.Up || !matchLabel(r.pattern, a.Label)
	})
	if len(fits) == 0 {
		return "", &Error{Rule: r.pattern, Host: host, Err: ErrNoAddress,
			Detail: "no interface that is up fits and has an IPv4 address; there are " + describe(all)}
	}
	slices.SortStableFunc(fits, func(a, b InterfaceAddress) int {
		if c := boolOrder(a.NoCarrier, b.NoCarrier); c != 0 {
			return c
		}
		if c := compareNatural(a.Label, b.Label); c != 0 {
			return c
		}
		return boolOrder(a.Secondary, b.Secondary)
	})
	return fits[0].Address.String(), nil
}

// describe lists interfaces for a message.
func describe(all []InterfaceAddress) string {
	if len(all) == 0 {
		return "none at all"
	}
	var b strings.Builder
	for i, a := range all {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (%s", a.Label, a.Address)
		switch {
		case !a.Up:
			b.WriteString(", down")
		case a.NoCarrier:
			b.WriteString(", no carrier")
		}
		b.WriteByte(')')
	}
	return b.String()
}

// matchLabel compares whole labels: ib0 is neither xib0 nor the alias ib0:1. A
// pattern matches an alias only if it has a colon itself.
func matchLabel(pattern, label string) bool {
	if strings.Contains(label, ":") != strings.Contains(pattern, ":") {
		return false
	}
	ok, err := path.Match(pattern, label)
	return err == nil && ok
}

// validPattern accepts what can be the name of an interface, or a pattern of such.
func validPattern(s string) bool {
	if s == "" || len(s) > 64 || strings.ContainsAny(s, " \t\r\n/,;\\") {
		return false
	}
	_, err := path.Match(s, "ib0")
	return err == nil
}

// compareNatural orders ib2 before ib10.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		na, nb := leadingDigits(a), leadingDigits(b)
		if na > 0 && nb > 0 {
			da, db := strings.TrimLeft(a[:na], "0"), strings.TrimLeft(b[:nb], "0")
			if len(da) != len(db) {
				return len(da) - len(db)
			}
			if c := strings.Compare(da, db); c != 0 {
				return c
			}
			a, b = a[na:], b[nb:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

func leadingDigits(s string) int {
	return len(s) - len(strings.TrimLeft(s, "0123456789"))
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
