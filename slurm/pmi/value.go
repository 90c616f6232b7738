package pmi

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// Limits of what goes through a process manager. Servers answer "done" to what
// they then lose, cut or crash on: Hydra cuts values silently at 1023 bytes and
// loses keys of more than 63, Slurm's PMI-1 loses requests of more than 1024 bytes
// and its PMI-2 can crash the step's daemon from 4096 bytes of value on.
const (
	// MaxValueBytes is the largest value of one Put.
	MaxValueBytes = 64 << 10
	// MaxKeyBytes is the longest key, with what numbers its parts.
	MaxKeyBytes = 63

	maxPartBytes = 700  // of one value on the wire
	maxLineBytes = 1024 // of one PMI-1 request with its newline
)

// encoding uses none of the characters that separate fields, and no padding.
var encoding = base64.RawURLEncoding

// splitValue cuts a value into the texts of its parts, each at most partBytes
// long. The first starts with the length of the whole text, so that a reader
// knows how many follow.
func splitValue(value []byte, partBytes int) []string {
	text := encoding.EncodeToString(value)
	text = strconv.Itoa(len(text)) + ":" + text
	var parts []string
	for len(text) > partBytes {
		parts = append(parts, text[:partBytes])
		text = text[partBytes:]
	}
	return append(parts, text)
}

// partKey numbers the parts after the first.
func partKey(key string, part int) string {
	if part == 0 {
		return key
	}
	return key + "." + strconv.Itoa(part)
}

// joinValue is the inverse of splitValue; next fetches a part by its number.
func joinValue(next func(part int) (string, error)) ([]byte, error) {
	first, err := next(0)
	if err != nil {
		return nil, err
	}
	length, text, ok := strings.Cut(first, ":")
	n, err := strconv.ParseUint(length, 10, 31)
	if !ok || err != nil || int(n) > encoding.EncodedLen(MaxValueBytes) || len(text) > int(n) {
		return nil, fmt.Errorf("%w: the value %s was not put by this library", ErrProtocol, excerpt(first))
	}
	var b strings.Builder
	b.WriteString(text)
	for part := 1; b.Len() < int(n); part++ {
		text, err := next(part)
		if err != nil {
			return nil, err
		}
		if text == "" || b.Len()+len(text) > int(n) {
			return nil, fmt.Errorf("%w: part %d of the value has %d bytes, %d are left", ErrProtocol, part, len(text), int(n)-b.Len())
		}
		b.WriteString(text)
	}
	value, err := encoding.DecodeString(b.String())
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrProtocol, err)
	}
	return value, nil
}

// checkKey refuses keys that a server would lose or misread.
func checkKey(key string, parts int) error {
	if key == "" || len(partKey(key, parts-1)) > MaxKeyBytes {
		return fmt.Errorf("%w: %d bytes with the number of its parts, want 1 to %d", ErrKey, len(partKey(key, parts-1)), MaxKeyBytes)
	}
	for _, c := range []byte(key) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return fmt.Errorf("%w: %q in it; want letters, digits, '.', '_' and '-'", ErrKey, c)
		}
	}
	return nil
}
