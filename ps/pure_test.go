package ps

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/slurm"
)

func TestClusterFromRoles(t *testing.T) {
	for _, c := range []struct {
		roles   string
		servers []int
		workers []int
		wrong   string
	}{
		{"ps,worker,worker,worker", []int{0}, []int{1, 2, 3}, ""},
		{"worker,worker,worker,ps", []int{3}, []int{0, 1, 2}, ""},
		{"ps,worker,chief,ps", []int{0, 3}, []int{2, 1}, ""},
		{"worker", nil, []int{0}, ""},
		{"ps,ps", nil, nil, "no worker"},
		{"ps,worker,evaluator", nil, nil, `rank 2 has the role "evaluator"`},
	} {
		roles, err := slurm.ParseRoles(c.roles)
		if err != nil {
			t.Fatal(err)
		}
		got, err := NewCluster(roles)
		if c.wrong != "" {
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want %q", c.roles, err, c.wrong)
			}
			continue
		}
		if err != nil || !slices.Equal(got.Servers, c.servers) || !slices.Equal(got.Workers, c.workers) {
			t.Errorf("%s: %+v %v", c.roles, got, err)
		}
	}
	if err := Counts(1, 3).Validate(6); err == nil || !strings.Contains(err.Error(), "1 ps and 3 workers are 4 ranks, but there are 6") {
		t.Errorf("%v", err)
	}
	for _, c := range []Cluster{{Servers: []int{0, 0}, Workers: []int{1}}, {Servers: []int{3}, Workers: []int{0, 1}}} {
		if c.Validate(3) == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

func TestConfigurationWithoutCommunicatorIsRefused(t *testing.T) {
	cfg := oneTable(1, 1, 10, Async)
	if _, err := NewServer(cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "no communicator") {
		t.Errorf("server: %v", err)
	}
	if _, err := NewWorker(cfg); !errors.Is(err, ErrConfig) {
		t.Errorf("worker: %v", err)
	}
}

// No table is cut into more blocks than requests have numbers, and none so long is taken for a short one.
func TestEndlessTablesAreRefused(t *testing.T) {
	for _, n := range []int{math.MaxInt, math.MaxInt - 20, 1 << 60, maxBlocks*blockAlign + 1} {
		for servers := 1; servers <= 3; servers++ {
			_, err := cut([]Table{{"w", n, Float64}}, servers, 8*blockAlign)
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), fmt.Sprint(n)) {
				t.Errorf("%d elements over %d servers: %v", n, servers, err)
			}
		}
	}
}

// Every element of every table is in exactly one block, blocks fit their size
// and the servers' shares differ by little.
func TestCutCoversEveryElementOnce(t *testing.T) {
	for _, tables := range [][]Table{
		{{"w", 1, Float32}},
		{{"w", 19210, Float64}},
		{{"a", 10, Float32}, {"b", 10, Float32}, {"c", 10, Float64}},
		{{"a", 4 << 20, Float32}, {"b", 255, Float64}, {"c", 100_001, Float64}},
	} {
		for servers := 1; servers <= 5; servers++ {
			for _, blockBytes := range []int{128, 4096, 1 << 20, 4 << 20} {
				s, err := cut(tables, servers, blockBytes)
				if err != nil {
					t.Fatal(err)
				}
				for ti, blocks := range s.blocks {
					at := 0
					for i, b := range blocks {
						if b.table != ti || b.index != i || b.begin != at || b.elems() < 1 || b.bytes() > blockBytes {
							t.Fatalf("%v over %d, %d bytes: block %+v at %d", tables, servers, blockBytes, b, at)
						}
						at = b.end
					}
					if at != tables[ti].Len {
						t.Fatalf("%v: blocks end at %d", tables[ti], at)
					}
					if tables[ti].Len >= servers*minBlockElems && len(blocks) < servers {
						t.Errorf("%v over %d servers is cut into %d blocks only", tables[ti], servers, len(blocks))
					}
				}
				least, most := math.MaxInt, 0
				for server := range servers {
					least, most = min(least, s.ownedBytes(server)), max(most, s.ownedBytes(server))
				}
				if most-least > len(tables)*max(blockBytes, minBlockElems*8) {
					t.Errorf("%v over %d: servers hold %d to %d bytes", tables, servers, least, most)
				}
			}
		}
	}
	for _, bad := range [][]Table{{{"w", 0, Float32}}, {{"w", 1, 3}}, {{"w", 1, Float32}, {"w", 2, Float32}}} {
		if _, err := cut(bad, 1, 4096); !errors.Is(err, ErrConfig) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestFrameRoundTrip(t *testing.T) {
	h := header{op: opPushPull, flags: flagStep | flagStop, config: 0xfeedface, table: 3, block: 70000, seq: maxSeq, slot: 2,
		count: 9, inline: 5, version: -7, weight: 0.125, aux: math.MinInt64}
	b := make([]byte, headerBytes+5)
	h.encode(b)
	copy(b[headerBytes:], "hello")
	var got header
	payload, err := got.decode(b)
	if err != nil || got != h || string(payload) != "hello" {
		t.Fatalf("%+v %q %v", got, payload, err)
	}
	for what, spoil := range map[string]func([]byte) []byte{
		"short":     func(b []byte) []byte { return b[:headerBytes-1] },
		"magic":     func(b []byte) []byte { b[0]++; return b },
		"operation": func(b []byte) []byte { b[4] = byte(opEnd); return b },
		"flags":     func(b []byte) []byte { b[5] = 0x80; return b },
		"status":    func(b []byte) []byte { b[6] = byte(statusEnd); return b },
		"seq":       func(b []byte) []byte { b[23] = 1; return b },
		"payload":   func(b []byte) []byte { return append(b, 0) },
		"reserved":  func(b []byte) []byte { b[36] = 1; return b },
		"weight":    func(b []byte) []byte { clear(b[40+8 : 48+8]); return b },
		"nan":       func(b []byte) []byte { b[54], b[55] = 0xf8, 0x7f; return b },
	} {
		if _, err := got.decode(spoil(bytes.Clone(b))); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzFrame(f *testing.F) {
	b := make([]byte, headerBytes+4)
	(&header{op: opPull, count: 1, inline: 4, weight: 1}).encode(b)
	f.Add(b)
	f.Add(b[:headerBytes])
	f.Add([]byte("FPS1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h header
		payload, err := h.decode(b)
		if err != nil {
			if !errors.Is(err, ErrFrame) {
				t.Fatalf("%v is no ErrFrame", err)
			}
			return
		}
		again := make([]byte, headerBytes+len(payload))
		h.encode(again)
		copy(again[headerBytes:], payload)
		if !bytes.Equal(again, b) {
			t.Fatalf("% x decodes to %+v, which encodes to % x", b, h, again)
		}
	})
}

// A gate's transcript: "o2@5" worker 2 offers a part of step 5, "l2@5" it
// lands, "r1" worker 1 retires, "a" the step is made. What the gate says
// follows the equals sign.
func TestGateTranscripts(t *testing.T) {
	say := map[verdict]string{take: "take", later: "later", stale: "stale", duplicate: "duplicate"}
	for _, c := range []struct {
		name                      string
		mode                      Mode
		workers, aggregate, parts int
		transcript                string
	}{
		{"async takes all", Async, 2, 2, 1, "o0@0=take l0@0=due o0@7=take l0@7=due o1@0=take l1@0=due"},
		{"sync waits for all", Sync, 3, 3, 1,
			"o1@0=take l1@0= o0@0=take o2@0=take l2@0= m=0 l0@0=due a m=0,1,2 o0@0=stale o0@1=take"},
		{"a worker ahead waits", Sync, 2, 2, 1, "o0@0=take l0@0= o0@1=later o1@0=take l1@0=due a o0@1=take"},
		{"one gradient per step", Sync, 2, 2, 1, "o0@0=take o0@0=duplicate f0@0 o0@0=take l0@0= o0@0=duplicate"},
		{"backup: the slowest is dropped", Sync, 3, 2, 1,
			"o0@0=take o1@0=take o2@0=take l2@0= l0@0=due a l1@0=stale o1@0=stale o1@1=take"},
		{"backup: whole shards only", Sync, 3, 2, 2,
			"o0@0=take o0@0=take l0@0= o1@0=take l1@0= o2@0=take l2@0= l0@0= o2@0=take l2@0=due a l1@0=stale"},
		{"the last one retires", Sync, 3, 3, 1, "o0@0=take l0@0= o1@0=take l1@0= r2=due a o0@1=take l0@1= o1@1=take l1@1=due"},
		{"retired after its gradient", Sync, 2, 2, 1, "o0@0=take l0@0= r0= o1@0=take l1@0=due a o1@1=take l1@1=due"},
		{"nobody left", Sync, 2, 2, 1, "r0= r1="},
		{"backup: fewer active than the aggregate", Sync, 3, 2, 1, "r0= r1= o2@0=take l2@0=due"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGate(c.mode, c.workers, c.aggregate, c.parts)
			for _, event := range strings.Fields(c.transcript) {
				what, want, _ := strings.Cut(event, "=")
				w, step := 0, int64(0)
				if len(what) > 1 {
					w = int(what[1] - '0')
				}
				if i := strings.IndexByte(what, '@'); i > 0 {
					step, _ = strconv.ParseInt(what[i+1:], 10, 64)
				}
				due := map[bool]string{true: "due"}
				var got string
				switch what[0] {
				case 'o':
					got = say[g.offer(w, step)]
				case 'l':
					v, d := g.arrive(w, step)
					got = due[d]
					if v == stale {
						got = "stale"
					}
				case 'f':
					g.forget(w, step)
				case 'r':
					got = due[g.retire(w)]
				case 'a':
					g.advance()
				case 'm':
					got = strings.ReplaceAll(strings.Trim(fmt.Sprint(g.missing()), "[]"), " ", ",")
				}
				if got != want {
					t.Fatalf("%s: the gate says %q", event, got)
				}
			}
		})
	}
}

func TestDoneBoard(t *testing.T) {
	b := newDoneBoard(3)
	if b.complete() || !slices.Equal(b.missing(), []int{0, 1, 2}) {
		t.Fatal("complete before anybody came")
	}
	if !b.arrive(1, 0) || b.arrive(1, 3) || b.arrivals() != 1 || b.status[1] != 0 {
		t.Error("the second done of a worker counts")
	}
	if b.lose(1) {
		t.Error("a worker that was done counts as lost")
	}
	if !b.lose(0) || b.lose(0) {
		t.Error("a loss does not count once")
	}
	if b.complete() || !slices.Equal(b.missing(), []int{2}) {
		t.Errorf("missing %v", b.missing())
	}
	b.arrive(2, 1)
	if !b.complete() || b.arrivals() != 2 {
		t.Errorf("%d arrivals, missing %v", b.arrivals(), b.missing())
	}
}

func TestStopRules(t *testing.T) {
	for _, c := range []struct {
		stop   Stop
		joined int64
		end    int64
	}{
		{Stop{LastStep: 1000}, 0, 1000},
		{Stop{LastStep: 1000}, 200, 1000},
		{Stop{NumSteps: 1000}, 0, 1000},
		{Stop{NumSteps: 1000}, 200, 1200},
	} {
		if c.stop.Reached(c.joined, c.end-1) || !c.stop.Reached(c.joined, c.end) {
			t.Errorf("%v, joined at %d: does not end at %d", c.stop, c.joined, c.end)
		}
	}
	if endless := (Stop{NumSteps: math.MaxInt64}); endless.Reached(1, 2) {
		t.Errorf("%v, joined at 1: ends at 2", endless)
	}
	for _, bad := range []Stop{{}, {1, 1}, {-1, 0}, {0, -5}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestAbsentRoundTrip(t *testing.T) {
	lost, absent := decodeAbsent(encodeAbsent([]int{1, 4, 7}, []int{4}))
	if !slices.Equal(lost, []int{4}) || !slices.Equal(absent, []int{1, 4, 7}) {
		t.Errorf("lost %v, absent %v", lost, absent)
	}
}

// Three updates against the rules written out by hand.
func TestOptimizers(t *testing.T) {
	grads := [][]float64{{2, -4}, {1, 1}, {-3, 0.5}}
	const weight = 2
	for _, c := range []struct {
		rule Rule
		want func() []float64
	}{
		{Rule{Rate: 0.1}, func() []float64 {
			v := []float64{1, 2}
			for _, g := range grads {
				for i := range v {
					v[i] -= 0.1 * g[i] / weight
				}
			}
			return v
		}},
		{Rule{Optimizer: Momentum, Rate: 0.1, Momentum: 0.8, Decay: Linear, Updates: 3}, func() []float64 {
			v, m := []float64{1, 2}, []float64{0, 0}
			for n, g := range grads {
				for i := range v {
					m[i] = 0.8*m[i] + g[i]/weight
					v[i] -= 0.1 * float64(3-n) / 3 * m[i]
				}
			}
			return v
		}},
		{Rule{Optimizer: Adam, Rate: 0.1}, func() []float64 {
			v, m, s := []float64{1, 2}, []float64{0, 0}, []float64{0, 0}
			for n, g := range grads {
				t := float64(n + 1)
				for i := range v {
					x := g[i] / weight
					m[i] = 0.9*m[i] + 0.1*x
					s[i] = 0.999*s[i] + 0.001*x*x
					mh, sh := m[i]/(1-math.Pow(0.9, t)), s[i]/(1-math.Pow(0.999, t))
					v[i] -= 0.1 * mh / (math.Sqrt(sh) + 1e-8)
				}
			}
			return v
		}},
	} {
		r := c.rule // Apply has the same defaults
		if err := r.WithDefaults().Validate(); err != nil {
			t.Fatal(err)
		}
		v := []float64{1, 2}
		v32 := []float32{1, 2}
		var slots [][]float64
		var slots32 [][]float32
		for range r.Slots() {
			slots, slots32 = append(slots, make([]float64, 2)), append(slots32, make([]float32, 2))
		}
		for n, g := range grads {
			Apply(r, int64(n), v, g, slots, weight)
			Apply(r, int64(n), v32, []float32{float32(g[0]), float32(g[1])}, slots32, weight)
		}
		for i, want := range c.want() {
			if math.Abs(v[i]-want) > 1e-12 || math.Abs(float64(v32[i])-want) > 1e-5 {
				t.Errorf("%s: element %d is %v in float64 and %v in float32, want %v", r.Optimizer, i, v[i], v32[i], want)
			}
		}
	}
}

func TestRateDecays(t *testing.T) {
	r := Rule{Rate: 2, Decay: Cosine, Updates: 100, Floor: 0.1}.WithDefaults()
	if got := r.RateAt(0); got != 2 {
		t.Errorf("begins at %v", got)
	}
	if got := r.RateAt(50); math.Abs(got-1.1) > 1e-12 {
		t.Errorf("is %v half way", got)
	}
	for _, n := range []int64{100, 1000} {
		if got := r.RateAt(n); math.Abs(got-0.2) > 1e-12 {
			t.Errorf("is %v at %d", got, n)
		}
	}
	r = Rule{Rate: 2, Warmup: 4}.WithDefaults()
	for n, want := range []float64{0.5, 1, 1.5, 2, 2} {
		if got := r.RateAt(int64(n)); got != want {
			t.Errorf("warm-up: is %v at %d, want %v", got, n, want)
		}
	}
	for _, bad := range []Rule{{}, {Rate: 1, Warmup: -1}, {Rate: -1}, {Rate: math.NaN()}, {Rate: 1, Decay: Linear}, {Rate: 1, Optimizer: "lbfgs"}, {Rate: 1, Decay: "steps"}, {Rate: 1, Momentum: 1}, {Rate: 1, Floor: 2},
		{Rate: 1, Epsilon: math.NaN()}, {Rate: 1, Epsilon: -1e-8}, {Rate: 1, Epsilon: math.Inf(1)}} {
		if err := bad.WithDefaults().Validate(); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestTagsDoNotMeet(t *testing.T) {
	for _, n := range []tags{6550, 1 << 24} {
		last := uint32(n) - 1
		if n.next(last) != 0 || n.next(0) != 1 {
			t.Errorf("%d request numbers: after %d comes %d", n, last, n.next(last))
		}
		ends := []int{tagRequest, n.reply(0), n.reply(last), n.requestPayload(0), n.requestPayload(last), n.replyPayload(0), n.replyPayload(last), 4 * int(n)}
		for i := 1; i < len(ends); i++ {
			if ends[i] <= ends[i-1] {
				t.Errorf("%d request numbers: tags %v", n, ends)
			}
		}
	}
}

// However many answers read a block's pages while it is updated, their memory is used again.
func TestPagesAreUsedAgain(t *testing.T) {
	const readers = 3
	sl := &slab{block: &block{end: 8, typ: Float64}, alloc: &allocator{}}
	sl.page = sl.free()
	pages := map[*page]bool{}
	var reading []*page
	for range 100 {
		for _, p := range []*page{sl.page, sl.free()} { // values, and a copy of an optimizer's vector
			p.readers++
			reading = append(reading, p)
		}
		sl.writable()
		pages[sl.page] = true
		if slices.Contains(reading, sl.page) {
			t.Fatal("a page that an answer reads is written to")
		}
		for len(reading) > readers {
			pages[reading[0]] = true
			sl.unread(reading[0])
			reading = reading[1:]
		}
	}
	if len(pages) > readers+3 {
		t.Errorf("%d pages for %d answers at a time", len(pages), readers)
	}
	seen := map[*page]bool{sl.page: true}
	for _, p := range sl.spare {
		if seen[p] {
			t.Error("a page is kept twice")
		}
		seen[p] = true
	}
}
