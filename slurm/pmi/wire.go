package pmi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxMessageBytes bounds what is read for one answer. Servers cut values at 1023
// to 2000 bytes, so nothing honest comes near.
const maxMessageBytes = 1 << 16

// field is one key=value of a message.
type field struct{ key, value string }

// message is what either protocol sends: a command and its fields in order. The
// order of the answer's fields differs between servers; they are found by key.
type message struct {
	cmd    string
	fields []field
}

func (m message) get(key string) (string, bool) {
	for _, f := range m.fields {
		if f.key == key {
			return f.value, true
		}
	}
	return "", false
}

func (m message) String() string {
	var b strings.Builder
	b.WriteString("cmd=" + m.cmd)
	for _, f := range m.fields {
		b.WriteString(" " + f.key + "=" + f.value)
	}
	return b.String()
}

// newMessage takes keys and values in turn.
func newMessage(cmd string, pairs ...string) message {
	m := message{cmd: cmd}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.fields = append(m.fields, field{pairs[i], pairs[i+1]})
	}
	return m
}

// splitFields reads the fields of both protocols: in PMI-2 the separator stands after each field, in PMI-1 between
// fields. Neither server can escape it within a value, so values must not hold it.
func splitFields(text string, separator byte) (message, error) {
	var m message
	for i, item := range strings.FieldsFunc(text, func(r rune) bool { return r == rune(separator) }) {
		key, value, ok := strings.Cut(item, "=")
		if i == 0 {
			if !ok || key != "cmd" || value == "" {
				return m, fmt.Errorf("%w: %s does not start with a command", ErrProtocol, excerpt(text))
			}
			m.cmd = value
			continue
		}
		if !ok {
			// A word of a human message, such as "msg=not found": part of the field before.
			if k := len(m.fields) - 1; k >= 0 {
				m.fields[k].value += string(separator) + item
			}
			continue
		}
		m.fields = append(m.fields, field{key, value})
	}
	if m.cmd == "" {
		return m, fmt.Errorf("%w: an empty message", ErrProtocol)
	}
	return m, nil
}

// framing is how messages of a protocol version stand on the wire.
type framing interface {
	encode(m message) ([]byte, error)
	decode(r *bufio.Reader) (message, error)
}

// lineFraming is PMI-1's: one line, fields between blanks. PMI-2 starts with it.
type lineFraming struct{}

func (lineFraming) encode(m message) ([]byte, error) {
	for _, f := range m.fields {
		if strings.ContainsAny(f.key+f.value, " \n") {
			return nil, fmt.Errorf("%w: %q holds a blank or a new line, which PMI-1 cannot carry", ErrProtocol, f.value)
		}
	}
	text := m.String() + "\n"
	if len(text) > maxLineBytes {
		return nil, fmt.Errorf("%w: a line of %d bytes, the limit is %d", ErrTooLarge, len(text), maxLineBytes)
	}
	return []byte(text), nil
}

func (lineFraming) decode(r *bufio.Reader) (message, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return message{}, fmt.Errorf("%w: a line of more than %d bytes", ErrProtocol, r.Size())
	}
	if err != nil {
		return message{}, err
	}
	return splitFields(strings.TrimRight(string(line), "\r\n"), ' ')
}

// lengthFraming is PMI-2's: six characters of decimal length, then fields ended
// by semicolons. Slurm pads the length on the right, Hydra on the left.
type lengthFraming struct{}

const headerBytes = 6

func (lengthFraming) encode(m message) ([]byte, error) {
	var b strings.Builder
	b.WriteString("cmd=" + m.cmd + ";")
	for _, f := range m.fields {
		if strings.ContainsRune(f.key+f.value, ';') {
			return nil, fmt.Errorf("%w: %q holds a semicolon, which PMI-2 servers cut off", ErrProtocol, f.value)
		}
		b.WriteString(f.key + "=" + f.value + ";")
	}
	if b.Len() > maxMessageBytes {
		return nil, fmt.Errorf("%w: a message of %d bytes", ErrTooLarge, b.Len())
	}
	return fmt.Appendf(nil, "%-*d%s", headerBytes, b.Len(), b.String()), nil
}

func (lengthFraming) decode(r *bufio.Reader) (message, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return message{}, err
	}
	n, err := strconv.ParseUint(strings.Trim(string(header[:]), " "), 10, 31)
	if err != nil || n == 0 || n > maxMessageBytes {
		return message{}, fmt.Errorf("%w: %q where the length of a message belongs", ErrProtocol, header)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return message{}, err
	}
	return splitFields(string(body), ';')
}

// excerpt shows the beginning of a message.
func excerpt(text string) string {
	return strconv.Quote(text[:min(len(text), 80)])
}
