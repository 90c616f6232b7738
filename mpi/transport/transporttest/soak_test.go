package transporttest

import (
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// A soak finds what is lost and what comes twice, by message and as data, before the end of a sender's messages and after.
func TestSoakCounts(t *testing.T) {
	const size, from = 2, 1
	note := transport.Header{Kind: kindNote}
	empty, data := transport.Header{Kind: transport.Data}, transport.Header{Kind: transport.Data, Token: 9, Aux: 3}
	end := transport.Header{Kind: kindEnd, Aux: 3}
	for name, k := range map[string]struct {
		come  []transport.Header
		wrong bool
	}{
		"all":                   {[]transport.Header{note, data, empty, end}, false},
		"a message is lost":     {[]transport.Header{data, empty, end}, true},
		"data is lost":          {[]transport.Header{note, empty, end}, true},
		"no data is lost":       {[]transport.Header{note, data, end}, true},
		"a message comes twice": {[]transport.Header{note, note, data, empty, end}, true},
		"data comes late":       {[]transport.Header{note, data, empty, end, data}, true},
		"the end comes twice":   {[]transport.Header{note, data, empty, end, end}, true},
	} {
		m := &member{size: size}
		s := newSoaker(m, 0)
		m.onMessage = s.message
		sink := &soakSink{member: m, begun: s.arrival}
		for _, h := range k.come {
			if h.Kind != transport.Data {
				sink.Message(from, &h, nil)
				continue
			}
			if n := int(h.Aux); n > 0 {
				copy(sink.Place(from, &h, 0, n), pattern(h.Token, n))
			}
			sink.Placed(from, &h)
		}
		if (m.fault != nil) != k.wrong {
			t.Errorf("%s: %v", name, m.fault)
		}
	}
}
