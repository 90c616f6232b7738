package mpi

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// card is what a rank says of itself when it joins.
type card struct {
	Protocol int
	Rank     int
	Size     int
	Node     int // place in the launcher's layout; -1: by host and rank
	Local    int
	Host     string
	// Processors is as in Member.
	Processors string
	Tree       string // ip:port of its tree listener
	Addresses  map[string][]byte
	Layout     layoutFields
}

// layoutFields are a Config's Layout in a card. Their values are encoded as bytes: JSON text would replace what is not
// UTF-8, which a value such as a file's name may contain.
type layoutFields []LayoutField

type wireField struct {
	Name  string
	Value []byte
}

func (l layoutFields) MarshalJSON() ([]byte, error) {
	wire := make([]wireField, len(l))
	for i, f := range l {
		wire[i] = wireField{f.Name, []byte(f.Value)}
	}
	return json.Marshal(wire)
}

func (l *layoutFields) UnmarshalJSON(b []byte) error {
	wire, err := decodeJSON[[]wireField](b)
	*l = nil
	for _, f := range wire {
		*l = append(*l, LayoutField{f.Name, string(f.Value)})
	}
	return err
}

// seat is a member as the bootstrap knows it.
type seat struct {
	Member
	Tree string
}

// roster is what all ranks know when they have met, in rank order.
type roster struct {
	Seats []seat
	Hash  [sha256.Size]byte // of the layout that all agree on
}

func (r *roster) members() []Member {
	members := make([]Member, len(r.Seats))
	for i, s := range r.Seats {
		members[i] = s.Member
	}
	return members
}

// protocolVersion changes when ranks of two versions cannot work together.
const protocolVersion = 2

const maxCardBytes, maxRosterBytes = 1 << 20, 256 << 20

func decodeJSON[T any](b []byte) (T, error) {
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("malformed %T: %w", v, err)
	}
	return v, nil
}

func encodeJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("mpi: " + err.Error()) // plain structs always encode
	}
	return b
}

// newRoster makes the roster of the cards of all ranks, or says what they
// disagree on.
func newRoster(cards []card) (*roster, error) {
	slices.SortFunc(cards, func(a, b card) int { return cmp.Compare(a.Rank, b.Rank) })
	if err := compareLayouts(cards); err != nil {
		return nil, err
	}
	order, err := positions(cards)
	if err != nil {
		return nil, err
	}
	r := &roster{Seats: make([]seat, len(cards))}
	for position, rank := range order {
		c := cards[rank]
		r.Seats[rank] = seat{Member{Rank: rank, Position: position, Host: c.Host, Processors: c.Processors, Addresses: c.Addresses}, c.Tree}
	}
	r.Hash = layoutHash(cards[0].Layout, r.Seats)
	return r, nil
}

// positions lists the ranks by place: node by node, local id by local id. Where the launcher does not tell the places,
// the nodes are the hosts, in the order of their lowest ranks.
func positions(cards []card) ([]int, error) {
	told := 0
	for _, c := range cards {
		if c.Node >= 0 && c.Local >= 0 {
			told++
		}
	}
	if told > 0 && told < len(cards) {
		return nil, fmt.Errorf("%w: only %d of %d ranks know their place", ErrLayout, told, len(cards))
	}
	places := slices.Clone(cards)
	if told == 0 {
		hosts := map[string]int{}
		for i := range places {
			if _, ok := hosts[places[i].Host]; !ok {
				hosts[places[i].Host] = len(hosts)
			}
			places[i].Node, places[i].Local = hosts[places[i].Host], places[i].Rank
		}
	}
	slices.SortFunc(places, func(a, b card) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Local, b.Local))
	})
	order := make([]int, len(places))
	for i, c := range places {
		order[i] = c.Rank
		if i > 0 && places[i-1].Node == c.Node && places[i-1].Local == c.Local {
			return nil, fmt.Errorf("%w: ranks %d and %d both say they are task %d of node %d", ErrLayout, places[i-1].Rank, c.Rank, c.Local, c.Node)
		}
	}
	return order, nil
}

// compareLayouts names every field whose value is not the same on all ranks,
// and which ranks have which.
func compareLayouts(cards []card) error {
	type fields = map[string]string
	own := make([]fields, len(cards))
	var names []string
	seen := map[string]bool{}
	for i, c := range cards {
		own[i] = fields{
			"protocol version": fmt.Sprint(c.Protocol),
			"number of ranks":  fmt.Sprint(c.Size),
		}
		for _, f := range c.Layout {
			own[i][f.Name] = f.Value
		}
		for _, name := range append([]string{"protocol version", "number of ranks"}, fieldNames(c.Layout)...) {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	var wrong []string
	for _, name := range names {
		var values []string
		ranks := map[string][]int{}
		for i := range cards {
			value, ok := own[i][name]
			if value = fmt.Sprintf("%q", value); !ok {
				value = "nothing"
			}
			if _, known := ranks[value]; !known {
				values = append(values, value)
			}
			ranks[value] = append(ranks[value], cards[i].Rank)
		}
		if len(values) == 1 {
			continue
		}
		slices.SortStableFunc(values, func(a, b string) int { return len(ranks[b]) - len(ranks[a]) })
		for i, value := range values {
			values[i] = fmt.Sprintf("%s on %s", value, rankList(ranks[value]))
		}
		wrong = append(wrong, fmt.Sprintf("%s is %s", name, strings.Join(values, ", ")))
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrLayout, strings.Join(wrong, "; "))
}

func fieldNames(fields []LayoutField) []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return names
}

// rankList writes ascending ranks as "rank 3" or "ranks 0-2,5".
func rankList(ranks []int) string {
	var b strings.Builder
	b.WriteString("rank ")
	if len(ranks) > 1 {
		b.Reset()
		b.WriteString("ranks ")
	}
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, ranks[i])
		switch {
		case j == i+1:
			fmt.Fprintf(&b, ",%d", ranks[j])
		case j > i:
			fmt.Fprintf(&b, "-%d", ranks[j])
		}
		i = j + 1
	}
	return b.String()
}

// layoutHash is over all that the ranks agreed on and who sits where.
func layoutHash(fields []LayoutField, seats []seat) [sha256.Size]byte {
	h := sha256.New()
	put := func(parts ...string) {
		for _, p := range parts {
			var n [8]byte
			binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
			h.Write(n[:])
			h.Write([]byte(p))
		}
	}
	put("fisterra layout", fmt.Sprint(protocolVersion), fmt.Sprint(len(fields)))
	sorted := slices.SortedFunc(slices.Values(fields), func(a, b LayoutField) int { return cmp.Compare(a.Name, b.Name) })
	for _, f := range sorted {
		put(f.Name, f.Value)
	}
	for _, s := range seats {
		put(fmt.Sprint(s.Rank), fmt.Sprint(s.Position), s.Host)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// valid checks a roster that came over the wire.
func (r *roster) valid(size int) error {
	if len(r.Seats) != size {
		return fmt.Errorf("malformed roster: %d members, %d expected", len(r.Seats), size)
	}
	taken := make([]bool, size)
	for i, s := range r.Seats {
		if s.Rank != i || s.Position < 0 || s.Position >= size || taken[s.Position] {
			return errors.New("malformed roster: ranks or positions are not a permutation")
		}
		taken[s.Position] = true
	}
	return nil
}
