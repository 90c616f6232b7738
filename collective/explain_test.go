package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

func TestExplainSaysWhatRuns(t *testing.T) {
	together(t, 6, func(ctx context.Context, c *mpi.Comm) error {
		e := Explain(plan.Allreduce, 1<<20, c)
		if e.Ranks != 6 || e.Hosts != 2 || e.Bytes != 1<<20 || e.Seconds <= 0 {
			return fmt.Errorf("%+v", e)
		}
		if e.Plan != e.Candidates[0].Plan {
			return fmt.Errorf("%s is taken although %s is cheaper", e.Plan, e.Candidates[0].Plan)
		}
		if len(e.Candidates)+len(e.Unfit) != len(planNames(plan.Allreduce)) {
			return fmt.Errorf("%d candidates and %d others of %d plans", len(e.Candidates), len(e.Unfit), len(planNames(plan.Allreduce)))
		}
		for i := 1; i < len(e.Candidates); i++ {
			if e.Candidates[i].Seconds < e.Candidates[i-1].Seconds {
				return fmt.Errorf("candidates are not in order: %v", e)
			}
		}
		if text := e.String(); !strings.Contains(text, "* "+e.Plan) || !strings.Contains(text, "6 ranks on 2 hosts") {
			return fmt.Errorf("the table does not show the choice:\n%s", text)
		}
		site := &Site{Name: "here", Rules: []Rule{{Collective: "allreduce", Ranks: 6, Hosts: 2, UpToBytes: -1, Plan: "ring"}}}
		if err := reconfigure(ctx, c, Config{Site: site}); err != nil {
			return err
		}
		if e := Explain(plan.Allreduce, 1<<20, c); e.Plan != "ring" || e.Why != "site table here" {
			return fmt.Errorf("the site's rule is not followed: %s, %s", e.Plan, e.Why)
		}
		if err := reconfigure(ctx, c, Config{Site: site, Force: map[plan.Kind]string{plan.Allreduce: "doubling"}}); err != nil {
			return err
		}
		if e := Explain(plan.Allreduce, 1<<20, c); e.Plan != "doubling" || e.Why != "forced" {
			return fmt.Errorf("the forced plan is not taken: %s, %s", e.Plan, e.Why)
		}
		return nil
	})
}

// Shared memory is a candidate for every collective of any length where all ranks share a
// host and are few, and is taken when it is cheapest, forced, or the site's rule.
func TestExplainKnowsSharedMemory(t *testing.T) {
	has := func(e Explanation) bool {
		return slices.ContainsFunc(e.Candidates, func(c Candidate) bool { return c.Plan == MemoryPlan && c.Seconds > 0 })
	}
	for _, k := range plan.Kinds() {
		for _, n := range []int{8, 2 * slotBytes, 1 << 20} {
			for _, transport := range []string{"shm", "mpi"} {
				here := Place{Ranks: 4, RanksPerHost: 4, RanksPerCore: 2, Transport: transport}
				e := ExplainFor(k, n, here, Config{})
				if !has(e) || e.Plan != e.Candidates[0].Plan {
					t.Errorf("memory is no candidate, or the cheapest is not taken:\n%v", e)
				}
				for _, f := range []Config{
					{Force: map[plan.Kind]string{k: MemoryPlan}},
					{Site: &Site{Rules: []Rule{{k.String(), 4, 1, -1, MemoryPlan, ""}}}},
				} {
					if e := ExplainFor(k, n, here, f); e.Plan != MemoryPlan {
						t.Errorf("memory is asked for and not taken:\n%v", e)
					}
				}
			}
			for _, there := range []Place{
				{Ranks: 4, RanksPerHost: 2, Transport: "shm"}, {Ranks: maxArena + 1, RanksPerHost: maxArena + 1, Transport: "shm"},
				{Ranks: 4, RanksPerHost: 4, Transport: "tcp"}, {Ranks: 4, RanksPerHost: 2, Transport: "mpi"},
			} {
				if e := ExplainFor(k, n, there, Config{}); has(e) {
					t.Errorf("memory is a candidate for ranks that do not share it:\n%v", e)
				}
			}
		}
	}
}

// Shared memory is not called the cheapest where messages are, although it is taken if they are so by little.
func TestExplainDoesNotCallTheDearerCheapest(t *testing.T) {
	dearer := 0
	for _, k := range plan.Kinds() {
		for n := 8; n <= 64<<20; n += max(4, n/4&^3) {
			e := ExplainFor(k, n, Place{Ranks: 4, RanksPerHost: 4, Transport: "shm"}, Config{})
			cheapest := e.Seconds <= e.Candidates[0].Seconds
			if !cheapest {
				dearer++
			}
			if strings.HasPrefix(e.Why, "cheapest") != cheapest {
				t.Fatalf("%v", e)
			}
		}
	}
	if dearer == 0 {
		t.Error("nothing that is dearer was taken")
	}
}

// A place of which something is not said has one rank, and all of them on one host.
func TestExplainKnowsAnyPlace(t *testing.T) {
	for _, k := range []struct {
		at           Place
		ranks, hosts int
	}{
		{Place{Transport: "shm"}, 1, 1},
		{Place{Ranks: -1, RanksPerHost: -1, Transport: "tcp"}, 1, 1},
		{Place{Ranks: 4, Transport: "shm"}, 4, 1},
		{Place{Ranks: 4, Cyclic: true, Transport: "mpi"}, 4, 1},
		{Place{Ranks: 4, Transport: "tcp"}, 4, 4},
	} {
		for _, kind := range plan.Kinds() {
			if e := ExplainFor(kind, 64, k.at, Config{}); e.Ranks != k.ranks || e.Hosts != k.hosts {
				t.Errorf("%v: %+v is taken for %d ranks on %d hosts", kind, k.at, e.Ranks, e.Hosts)
			}
		}
	}
}

// Over TCP the ranks of one host are as far from each other as any, and a message costs what it costs there.
func TestExplainKnowsTCP(t *testing.T) {
	price := func(transport string) float64 {
		return ExplainFor(plan.Allreduce, 1<<20, Place{Ranks: 2, RanksPerHost: 2, Transport: transport}, Config{Force: map[plan.Kind]string{plan.Allreduce: "doubling"}}).Seconds
	}
	if over, by := price("tcp"), price("shm"); over < tcpModel.Net.Exchange.At(1<<20) || by >= over {
		t.Errorf("1 MiB by doubling: %g s over TCP, %g s in shared memory", over, by)
	}
}

// Who does it over the system's library, and why; nothing prices the library.
func TestExplainKnowsTheLibrary(t *testing.T) {
	apart, near := Place{Ranks: 4, RanksPerHost: 2, Transport: "mpi"}, Place{Ranks: 4, RanksPerHost: 4, Transport: "mpi"}
	over := func(transport string, hosts int, name string) *Site {
		return &Site{Name: "here", Rules: []Rule{{"allreduce", 4, hosts, -1, name, transport}}}
	}
	rule := func(hosts int, name string) *Site { return over("", hosts, name) }
	ring := map[plan.Kind]string{plan.Allreduce: "ring"}
	for _, c := range []struct {
		at        Place
		f         Config
		plan, why string // none: the cheapest by model
	}{
		{apart, Config{}, LibraryPlan, "across hosts"},
		{near, Config{}, "", ""},
		{apart, Config{Library: LibraryNever}, "", ""},
		{near, Config{Library: LibraryAlways}, LibraryPlan, "forced"},
		{near, Config{Site: rule(1, LibraryPlan)}, LibraryPlan, "site table here"},
		{apart, Config{Site: rule(2, "ring")}, "ring", "site table here"},
		{apart, Config{Site: over("mpi", 2, "ring")}, "ring", "site table here"},
		{apart, Config{Site: over("shm", 2, "ring")}, LibraryPlan, "across hosts"}, // was measured with TCP between the hosts
		{apart, Config{Force: ring}, "ring", "forced"},
		{Place{Ranks: 4, RanksPerHost: 2, Transport: "shm"}, Config{Site: rule(2, LibraryPlan)}, "", ""},
		{Place{Ranks: 4, RanksPerHost: 4, Transport: "shm"}, Config{Site: rule(1, LibraryPlan)}, "", ""},
		{near, Config{Library: LibraryNever, Site: rule(1, LibraryPlan)}, "", ""},
	} {
		e := ExplainFor(plan.Allreduce, 64, c.at, c.f)
		if c.plan == "" {
			c.plan, c.why = e.Candidates[0].Plan, "cheapest by model default"
		}
		if e.Plan != c.plan || e.Why != c.why || (e.Seconds > 0) != (e.Plan != LibraryPlan) {
			t.Errorf("%+v: %s, %s, %g s; want %s, %s", c.at, e.Plan, e.Why, e.Seconds, c.plan, c.why)
		}
		if text := e.String(); !strings.Contains(text, "\n* "+c.plan) {
			t.Errorf("the table does not show the choice:\n%s", text)
		}
	}
}

func TestSiteTakesTheSmallestRuleThatCovers(t *testing.T) {
	s := &Site{Name: "x"}
	for _, r := range []Rule{{"bcast", 4, 1, -1, "scatter+ring", "shm"}, {"bcast", 4, 1, 1024, "linear", ""}, {"bcast", 4, 1, 8192, "binomial", "shm"}} {
		s.Add(r)
	}
	s.Add(Rule{"bcast", 4, 1, 1024, "linear", "shm"})        // in place of that for any transport
	s.Add(Rule{"bcast", 4, 1, 1024, "scatter+bruck", "shm"}) // in place of linear
	s.Add(Rule{"bcast", 4, 1, 1024, "chain/64K", "tcp"})     // beside it
	var file bytes.Buffer
	if err := s.Write(&file); err != nil {
		t.Fatal(err)
	}
	read, err := ReadSite(&file, "x")
	if err != nil || len(read.Rules) != 4 {
		t.Fatal(err, read)
	}
	s = read.over("shm")
	for n, want := range map[int]string{4: "scatter+bruck", 1024: "scatter+bruck", 1028: "binomial", 1 << 20: "scatter+ring"} {
		p := &plan.Problem{Kind: plan.Bcast, Size: 4, Count: n / 4, ElemBytes: 4}
		if a, ok := s.pick(p); !ok || a.Name != want {
			t.Errorf("%d B: %q, want %q", n, a.Name, want)
		}
		p.Size = 5
		if _, ok := s.pick(p); ok {
			t.Errorf("%d B on 5 ranks: a rule for 4 ranks was taken", n)
		}
	}
}

// A site's model prices plans unless another is configured, and the default cannot be changed by who looks at it.
func TestWhichModelPrices(t *testing.T) {
	together(t, 2, func(_ context.Context, c *mpi.Comm) error {
		m := DefaultModel(c)
		m.Name = "of the site"
		m.Host.OneWay[0].Seconds, m.Read[0].Seconds = 1, 1
		if d := DefaultModel(c); d.Host.OneWay[0].Seconds == 1 || d.Read[0].Seconds == 1 {
			return errors.New("the default has changed")
		}
		other := DefaultModel(c)
		other.Name = "configured"
		for name, f := range map[string]Config{
			"of the site": {Site: &Site{Model: m}}, "configured": {Site: &Site{Model: m}, Model: other},
		} {
			if err := Configure(c, f); err != nil {
				return err
			}
			at := Place{Ranks: 2, RanksPerHost: 2, Transport: "tcp"}
			for _, why := range []string{Explain(plan.Bcast, 64, c).Why, ExplainFor(plan.Bcast, 64, at, f).Why} {
				if !strings.Contains(why, name) {
					return fmt.Errorf("%q, want the model %q", why, name)
				}
			}
		}
		return nil
	})
}

// A site's model prices only over the transport that it was measured over; one of which that is not known prices over any.
func TestModelHoldsForItsTransport(t *testing.T) {
	together(t, 2, func(_ context.Context, c *mpi.Comm) error {
		m := DefaultModel(c)
		m.Name = "measured"
		here := &Site{Name: "here"}
		here.SetModel(m, c)
		if want := transportOf(c); here.ModelTransport != want {
			return fmt.Errorf("the model is one of %q, want %q", here.ModelTransport, want)
		}
		for of, prices := range map[string]map[string]bool{
			"":    {"shm": true, "tcp": true, "mpi": true},
			"shm": {"shm": true, "tcp": false, "mpi": false},
			"tcp": {"shm": false, "tcp": true, "mpi": false},
		} {
			var file bytes.Buffer
			if err := (&Site{Name: "here", Model: m, ModelTransport: of}).Write(&file); err != nil {
				return err
			}
			site, err := ReadSite(&file, "x")
			if err != nil {
				return err
			}
			f := Config{Site: site}
			if err := Configure(c, f); err != nil {
				return err
			}
			explained := map[string]Explanation{"shm": Explain(plan.Scan, 64, c)}
			for transport := range prices {
				if _, ok := explained[transport]; !ok {
					explained[transport] = ExplainFor(plan.Scan, 64, Place{Ranks: 2, Transport: transport}, f)
				}
			}
			for transport, e := range explained {
				name, why := "default", "that of site here was measured over "+of+", and ranks are here over "+transport
				if prices[transport] {
					name, why = "measured", ""
				}
				if e.Model != name || e.PassedOver != why || !strings.Contains(e.Why, "model "+name) || strings.Contains(e.String(), "that of site") != (why != "") {
					return fmt.Errorf("a model of %q over %s: want model %s, %q:\n%v", of, transport, name, why, e)
				}
			}
			f.Model = DefaultModel(c)
			if e := ExplainFor(plan.Scan, 64, Place{Ranks: 2, Transport: "mpi"}, f); e.PassedOver != "" {
				return fmt.Errorf("a model is configured, and the site's is passed over: %v", e)
			}
		}
		return nil
	})
}

func TestReadSiteNamesTheMistake(t *testing.T) {
	for file, want := range map[string]string{
		`{"rules":[{"collective":"bcats","ranks":2,"hosts":1,"up_to_bytes":8,"plan":"linear"}]}`: "bcats",
		`{"rules":[{"collective":"bcast","ranks":2,"hosts":1,"up_to_bytes":8,"plan":"rign"}]}`:   "rign",
		`{"rules":[{"collective":"bcast","ranks":0,"hosts":1,"up_to_bytes":8,"plan":"linear"}]}`: "0 ranks",
		`{"ruels":[]}`: "ruels",
		`{"rules":[],"model":{"host":{"one_way":[{"bytes":-1,"seconds":1}]}}}`: "-1 bytes",
		`{"rules":[],"model":{}}`: "host.one_way has no points",
		`{"name":"here","rules":[{"collective":"bcast","ranks":0,"hosts":1,"up_to_bytes":8,"plan":"linear"}]}`: "rule 0: 0 ranks",
		`{"rules":[]}{"rules":[]}`:               "there is more after the site",
		`{"rules":[]} x`:                         "there is more after the site",
		`{"rules":[],"model_transport":"smoke"}`: `model_transport: no transport is called "smoke"; they are [shm tcp mpi]`,
		`{"rules":[{"collective":"bcast","ranks":2,"hosts":1,"up_to_bytes":0,"plan":"linear"},
			{"collective":"bcast","ranks":2,"hosts":1,"plan":"linear"}]}`: "rule 1: up_to_bytes is missing: want a size in bytes, or -1",
		`{"rules":[{"collective":"bcast","ranks":2,"hosts":1,"up_to_bytes":null,"plan":"linear"}]}`: "rule 0: up_to_bytes is missing",
		`null`:                                 `neither "model" nor "rules"`,
		`{}`:                                   `neither "model" nor "rules"`,
		`{"name":"here","rules":null}`:         `neither "model" nor "rules"`,
		``:                                     "it is empty",
		`{"rules":[],"model_transport":"shm"}`: "model_transport shm: there is no model",
	} {
		_, err := ReadSite(strings.NewReader(file), "a/file")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "site file a/file: ") {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
	if s, err := ReadSite(strings.NewReader("{\"rules\":[]}\n\n"), "a/file"); err != nil || s.Name != "a/file" {
		t.Errorf("%+v, %v", s, err)
	}
}

func FuzzReadSite(f *testing.F) {
	f.Add(`{"name":"a","rules":[{"collective":"bcast","ranks":2,"hosts":1,"up_to_bytes":8,"plan":"linear"}]}`)
	f.Add(`{"rules":null,"model":{"name":"m","host":{"one_way":[{"bytes":0,"seconds":1e-6}]}}}`)
	f.Fuzz(func(t *testing.T, file string) {
		s, err := ReadSite(strings.NewReader(file), "fuzz")
		if err != nil {
			return
		}
		for _, k := range plan.Kinds() {
			p := &plan.Problem{Kind: k, Size: 2, Count: 2, ElemBytes: 4}
			if a, ok := s.pick(p); ok && a.Why(p) != "" {
				t.Fatalf("%s was picked, which does not fit", a.Name)
			}
		}
	})
}

func FuzzNews(f *testing.F) {
	f.Add(news{kind: newsAbort, class: classMismatch, seq: 7, text: "why"}.encode())
	f.Add([]byte{2})
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := decodeNews(b)
		if err != nil {
			return
		}
		again, err := decodeNews(n.encode())
		if err != nil || again != n {
			t.Fatalf("%+v becomes %+v, %v", n, again, err)
		}
	})
}

func FuzzSignature(f *testing.F) {
	s := (&key{kind: plan.Bcast, count: 3}).sign(1)
	f.Add(s[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok := readSignature(b); ok && s.String() == "" {
			t.Fatal("a signature without words")
		}
	})
}

// What an explanation says of vectors from mpi.Alloc holds for those that no slot holds, unless pieces are
// forced, and is left out of reductions that fit into a few pieces where ranks take turns.
func TestExplainKnowsMappedVectors(t *testing.T) {
	alone, crowded := Place{Ranks: 2, RanksPerHost: 2, RanksPerCore: 1, Transport: "shm"}, Place{Ranks: 4, RanksPerHost: 4, RanksPerCore: 2, Transport: "shm"}
	for _, k := range []struct {
		kind  plan.Kind
		bytes int
		at    Place
		f     Config
		want  bool
	}{
		{plan.Allgather, 1 << 20, alone, Config{}, true},
		{plan.Allreduce, 1 << 20, alone, Config{}, true},
		{plan.Allreduce, 1 << 20, crowded, Config{}, true},
		{plan.Allreduce, 2 * pieceBytes, crowded, Config{}, false},
		{plan.Allgather, 8 * pieceBytes, crowded, Config{}, true},
		{plan.Allgather, 64, alone, Config{}, false},
		{plan.Scan, 1 << 20, alone, Config{}, false},
		{plan.Barrier, 0, alone, Config{}, false},
		{plan.Allgather, 1 << 20, alone, Config{Force: map[plan.Kind]string{plan.Allgather: MemoryPlan}}, false},
		{plan.Allgather, 1 << 20, alone, Config{Site: &Site{Rules: []Rule{{"allgather", 2, 1, -1, MemoryPlan, ""}}}}, true},
	} {
		if e := ExplainFor(k.kind, k.bytes, k.at, k.f); strings.Contains(e.Why, "mpi.Alloc") != k.want {
			t.Errorf("%v of %d B on %d ranks: %s, %s; mapped: want %v", k.kind, k.bytes, k.at.Ranks, e.Plan, e.Why, k.want)
		}
	}
}
