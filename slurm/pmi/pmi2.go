package pmi

import (
	"fmt"
	"strconv"
)

// protocol2 is PMI-2: messages with a length, one key-value space per job.
type protocol2 struct {
	link *link
	job  string // as PMI_JOBID has it; empty under Hydra, which accepts that
}

func (p *protocol2) start(who identity) (identity, error) {
	if err := p.link.greet(2, 0); err != nil {
		return who, err
	}
	p.link.framing = lengthFraming{}
	p.job = who.job
	m, err := p.link.call("fullinit-response", newMessage("fullinit", "pmijobid", p.job, "pmirank", strconv.Itoa(who.rank), "threaded", "FALSE"))
	if err != nil {
		return who, err
	}
	rank, err1 := number(m, "rank")
	size, err2 := number(m, "size")
	if err1 != nil || err2 != nil {
		return who, fmt.Errorf("%w: %s without rank or size", ErrProtocol, m)
	}
	if rank != who.rank || who.size != 0 && size != who.size {
		return who, fmt.Errorf("%w: the server says rank %d of %d, the environment rank %d of %d", ErrProtocol, rank, size, who.rank, who.size)
	}
	who.size = size
	if who.job == "" {
		id, err := p.link.call("job-getid-response", newMessage("job-getid"))
		if err != nil {
			return who, err
		}
		who.job, _ = id.get("jobid")
	}
	return who, nil
}

func number(m message, key string) (int, error) {
	text, _ := m.get(key)
	return strconv.Atoi(text)
}

func (p *protocol2) partBytes(string) int { return maxPartBytes }

func (p *protocol2) put(key, value string) error {
	_, err := p.link.call("kvs-put-response", newMessage("kvs-put", "key", key, "value", value))
	return err
}

func (p *protocol2) get(key string) (string, error) {
	m, err := p.link.call("kvs-get-response", newMessage("kvs-get", "jobid", p.job, "srcid", "-1", "key", key))
	if err != nil {
		return "", err
	}
	value, ok := m.get("value")
	if found, _ := m.get("found"); found != "TRUE" || !ok {
		return "", ErrNotFound
	}
	return value, nil
}

func (p *protocol2) fence() error {
	_, err := p.link.call("kvs-fence-response", newMessage("kvs-fence"))
	return err
}

func (p *protocol2) finalize() error {
	_, err := p.link.call("finalize-response", newMessage("finalize"))
	return err
}
