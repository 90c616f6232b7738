package mpi

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestMatchTranscript replays testdata/match.txt: commands, and after ">"
// what the matcher must say.
//
//	post NAME CONTEXT SOURCE TAG    a receive; "held NAME" if a message was waiting, else "posted"
//	arrive NAME CONTEXT SOURCE TAG  a message; "taken NAME" by a receive, else "held"
//	withdraw NAME                   a posted receive
//	probe CONTEXT SOURCE TAG        the message a receive would take, or "none"
//	new                             an empty matcher
func TestMatchTranscript(t *testing.T) {
	f, err := os.Open("testdata/match.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var m *matcher
	names := map[any]string{}
	posted := map[string]*op{}
	var got string
	number := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		number++
		w := strings.Fields(s.Text())
		if len(w) == 0 || w[0] == "#" {
			continue
		}
		env := func(w []string) envelope {
			var n [3]int
			for i := range n {
				if w[i] == "*" {
					n[i] = -1
				} else if n[i], err = strconv.Atoi(w[i]); err != nil {
					t.Fatalf("line %d: %v", number, err)
				}
			}
			return envelope{uint32(n[0]), int32(n[1]), int32(n[2])}
		}
		switch w[0] {
		case "new":
			m = &matcher{}
			clear(names)
		case "post":
			v := env(w[2:])
			if a := m.find(v); a != nil {
				m.release(a)
				got = "held " + names[a]
				break
			}
			o := &op{env: v}
			names[o], posted[w[1]] = w[1], o
			m.number(o)
			m.post(o)
			got = "posted"
		case "arrive":
			v := env(w[2:])
			if o := m.take(v); o != nil {
				got = "taken " + names[o]
				break
			}
			a := &arrival{env: v}
			names[a] = w[1]
			m.hold(a)
			got = "held"
		case "withdraw":
			m.withdraw(posted[w[1]])
			got = fmt.Sprint(m.posted, " posted")
		case "probe":
			got = "none"
			if a := m.find(env(w[1:])); a != nil {
				got = names[a]
			}
		case ">":
			if want := strings.Join(w[1:], " "); got != want {
				t.Errorf("line %d: got %q, want %q", number, got, want)
			}
		default:
			t.Fatalf("line %d: unknown command %q", number, w[0])
		}
	}
	if number == 0 {
		t.Fatal("empty transcript")
	}
}

// TestMatchAgainstOracle compares the matcher with a plain list that follows
// MPI's rule to the letter.
func TestMatchAgainstOracle(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	var m matcher
	var ops []*op
	var held []*arrival
	for range 200000 {
		v := envelope{uint32(r.IntN(2)), int32(r.IntN(3)), int32(r.IntN(3))}
		if r.IntN(2) == 0 {
			if r.IntN(4) == 0 {
				v.source = AnySource
			}
			if r.IntN(4) == 0 {
				v.tag = AnyTag
			}
			want := -1
			for i, a := range held {
				if v.accepts(a.env) {
					want = i
					break
				}
			}
			a := m.find(v)
			if (a == nil) != (want < 0) || a != nil && a != held[want] {
				t.Fatalf("receive %v: wrong message", v)
			}
			if a != nil {
				m.release(a)
				held = append(held[:want], held[want+1:]...)
				continue
			}
			o := &op{env: v}
			m.number(o)
			m.post(o)
			ops = append(ops, o)
			if len(ops) > 40 {
				i := r.IntN(len(ops))
				m.withdraw(ops[i])
				if r.IntN(2) == 0 { // as one whose message was taken back
					m.post(ops[i])
					continue
				}
				ops = append(ops[:i], ops[i+1:]...)
			}
			continue
		}
		want := -1
		for i, o := range ops {
			if o.env.accepts(v) {
				want = i
				break
			}
		}
		o := m.take(v)
		if (o == nil) != (want < 0) || o != nil && o != ops[want] {
			t.Fatalf("message %v: wrong receive", v)
		}
		if o != nil {
			ops = append(ops[:want], ops[want+1:]...)
			continue
		}
		a := &arrival{env: v}
		m.hold(a)
		held = append(held, a)
		if len(held) > 40 {
			i := r.IntN(len(held))
			m.release(held[i])
			held = append(held[:i], held[i+1:]...)
		}
	}
	if m.posted != len(ops) || m.unexpected != len(held) {
		t.Fatalf("counts %d, %d; want %d, %d", m.posted, m.unexpected, len(ops), len(held))
	}
}
