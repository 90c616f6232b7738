package pmi

import (
	"fmt"
	"strconv"
)

// protocol1 is PMI-1: lines of text, values in a named key-value space.
type protocol1 struct {
	link *link
	kvs  string
	// keyBytes and valueBytes are what the server allows, without a closing zero.
	keyBytes, valueBytes int
}

// start opens the conversation. Rank and size come from the environment or, over
// PMI_PORT, from the greeting: PMI-1 has no request for them.
func (p *protocol1) start(who identity) (identity, error) {
	if err := p.link.greet(1, 1); err != nil {
		return who, err
	}
	maxes, err := p.link.call("maxes", newMessage("get_maxes"))
	if err != nil {
		return who, err
	}
	p.keyBytes = limitOf(maxes, "keylen_max", MaxKeyBytes+1) - 1
	p.valueBytes = limitOf(maxes, "vallen_max", maxPartBytes+1) - 1
	name, err := p.link.call("my_kvsname", newMessage("get_my_kvsname"))
	if err != nil {
		return who, err
	}
	var ok bool
	if p.kvs, ok = name.get("kvsname"); !ok {
		return who, fmt.Errorf("%w: %s without kvsname", ErrProtocol, name)
	}
	who.job = p.kvs
	return who, nil
}

// limitOf reads a limit from an answer. Where the server tells none, or more than ours, ours holds.
func limitOf(m message, key string, ours int) int {
	text, _ := m.get(key)
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 || n > ours {
		return ours
	}
	return n
}

func (p *protocol1) partBytes(key string) int {
	overhead := len(newMessage("put", "kvsname", p.kvs, "key", key, "value", "").String()) + 1
	return min(maxPartBytes, p.valueBytes, maxLineBytes-overhead)
}

func (p *protocol1) put(key, value string) error {
	if len(key) > p.keyBytes {
		return fmt.Errorf("%w: %d bytes, this server allows %d", ErrKey, len(key), p.keyBytes)
	}
	_, err := p.link.call("put_result", newMessage("put", "kvsname", p.kvs, "key", key, "value", value))
	return err
}

func (p *protocol1) get(key string) (string, error) {
	m, err := p.link.exchange("get_result", newMessage("get", "kvsname", p.kvs, "key", key))
	if err != nil {
		return "", err
	}
	value, ok := m.get("value")
	if rc, _ := m.get("rc"); rc != "0" || !ok {
		return "", ErrNotFound
	}
	return value, nil
}

func (p *protocol1) fence() error {
	_, err := p.link.call("barrier_out", newMessage("barrier_in"))
	return err
}

func (p *protocol1) finalize() error {
	_, err := p.link.call("finalize_ack", newMessage("finalize"))
	return err
}
