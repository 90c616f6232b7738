package collective

import (
	"encoding/binary"
	"fmt"
)

// news is a message on the control tag.
//
//	0  kind       1 B
//	1  class      1 B, of an abort
//	4  seq        4 B
//	8  signature 16 B, of a query
//	24 sends      8 B, of a query in an alltoallv: elements to the rank that is asked
//	32 receives   8 B, and from it
//	40 text; of a past the signatures of the calls before seq
type news struct {
	kind      newsKind
	class     newsClass
	seq       uint32
	signature signature
	exchange  exchange
	text      string
}

type newsKind uint8

const (
	newsAbort newsKind = iota + 1 // collectives on this communicator are over
	newsQuery                     // I wait for you in this collective
	newsReply                     // what I am doing
	newsPast                      // what I called before this collective: you called something else, which of us was it?
)

type newsClass uint8

const (
	classMismatch newsClass = iota + 1
	classGaveUp
)

const (
	newsHead = 40
	newsMax  = 16 << 10
)

func (n news) encode() []byte {
	text := n.text[:min(len(n.text), newsMax-newsHead)]
	b := make([]byte, newsHead, newsHead+len(text))
	b[0], b[1] = uint8(n.kind), uint8(n.class)
	binary.LittleEndian.PutUint32(b[4:], n.seq)
	copy(b[8:], n.signature[:])
	binary.LittleEndian.PutUint64(b[24:], uint64(n.exchange.sends))
	binary.LittleEndian.PutUint64(b[32:], uint64(n.exchange.receives))
	return append(b, text...)
}

func decodeNews(b []byte) (news, error) {
	if len(b) < newsHead || len(b) > newsMax {
		return news{}, fmt.Errorf("collective: news of %d B, want %d to %d", len(b), newsHead, newsMax)
	}
	n := news{kind: newsKind(b[0]), class: newsClass(b[1]), seq: binary.LittleEndian.Uint32(b[4:]), signature: signature(b[8:24]), text: string(b[newsHead:])}
	n.exchange = exchange{int(binary.LittleEndian.Uint64(b[24:])), int(binary.LittleEndian.Uint64(b[32:]))}
	if n.kind < newsAbort || n.kind > newsPast {
		return news{}, fmt.Errorf("collective: news of unknown kind %d", n.kind)
	}
	return n, nil
}
