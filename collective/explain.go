package collective

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Explanation says which plan a collective takes, and why.
type Explanation struct {
	Kind       plan.Kind
	Bytes      int // Problem.TotalBytes
	Ranks      int
	Hosts      int
	Transport  string      // as Place.Transport
	Plan       string      // LibraryPlan where the system's library does it
	Why        string      // "cheapest by model ...", "by model ... not more than", "by model ... for vectors from mpi.Alloc", "site table ...", "forced", "across hosts" (the library)
	Seconds    float64     // predicted; 0 for the library, which nothing prices
	Model      string      // which prices Seconds and Candidates
	PassedOver string      // why that is not the model of the site; empty: it is, or there is none
	Candidates []Candidate // all plans that fit, cheapest first
	Unfit      []Candidate // those that do not
}

// Candidate is a plan with its predicted time, or the reason why it does not fit.
type Candidate struct {
	Plan    string
	Source  string
	Seconds float64
	Why     string
}

// Explain says what the collective would do with a message of that many bytes:
// the vector's for bcast, reduce, allreduce and scans, all blocks together
// otherwise. The root is rank 0, elements are float32, and reductions sums. Not collective; it sends nothing.
func Explain(kind plan.Kind, bytes int, c *mpi.Comm) Explanation {
	s := stateOf(c)
	s.mu.Lock()
	p := problemOf(kind, s.rank, s.size, bytes, s.hosts(c))
	p.RanksPerCore = s.ranksPerCore(c)
	config, given := s.config, s.given
	has := means{shared: s.arena.Load() != nil || !s.arenaSettled.Load() && s.arenaSuits(c), read: s.canRead()}
	s.mu.Unlock()
	has.library = libraryHas(c, &entry{key: key{kind: kind, typ: typeOf[float32](), op: Sum}})
	e := config.explain(p, has)
	e.Transport = transportOf(c)
	e.PassedOver = given.passedOver(e.Transport)
	return e
}

// transports are those that transportOf tells apart.
var transports = []string{"shm", "tcp", "mpi"}

// transportOf is how ranks reach each other, as in Place.Transport. All of them get the same answer.
func transportOf(c *mpi.Comm) string {
	if _, ok := c.Native(); ok {
		return "mpi"
	}
	for r := range c.Size() {
		if !c.Networked(r) {
			return "shm"
		}
	}
	return "tcp"
}

// means is what ranks have beside messages of their own.
type means struct {
	shared  bool // memory that an arena is in, or can be
	read    bool // each other's memory
	library bool // the system's, which has the collective
}

// Place is where ranks run.
type Place struct {
	Ranks        int     // less than 1: one
	RanksPerHost int     // less than 1: all
	Cyclic       bool    // ranks are dealt to the hosts in turn; else they fill one after the other
	RanksPerCore float64 // at most 1: each has its own
	// Transport is the transport between ranks of one host, as mpi.Comm.Transport names it. With "shm" ranks of different
	// hosts talk over TCP; with "tcp" all ranks do; with any other the network is an InfiniBand. With "mpi" there is the
	// system's library, too. Ranks of a host have shared memory with "shm" and "mpi" only.
	Transport string
}

// ExplainFor is Explain for ranks that need not exist.
func ExplainFor(kind plan.Kind, bytes int, at Place, f Config) Explanation {
	if at.Ranks = max(1, at.Ranks); at.RanksPerHost < 1 {
		at.RanksPerHost = at.Ranks
	}
	together := at.RanksPerHost
	if at.Transport == "tcp" {
		together = 1
	}
	passedOver := f.passedOver(at.Transport)
	f = f.over(at.Transport, defaultOver(at.Transport))
	host := func(r int) string { return fmt.Sprint(r / together) }
	if hosts := (at.Ranks + together - 1) / together; at.Cyclic {
		host = func(r int) string { return fmt.Sprint(r % hosts) }
	}
	nodes := plan.NewNodes(at.Ranks, host)
	p := problemOf(kind, 0, at.Ranks, bytes, nodes)
	p.RanksPerCore = at.RanksPerCore
	e := f.explain(p, means{
		shared:  (at.Transport == "shm" || at.Transport == "mpi" && f.Library != LibraryAlways) && at.Ranks > 1 && at.Ranks <= min(at.RanksPerHost, maxArena),
		read:    true,
		library: at.Transport == "mpi",
	})
	e.Transport, e.PassedOver = at.Transport, passedOver
	return e
}

// problemOf is a collective on bytes as elements of four bytes, or of one where that does not fit.
func problemOf(kind plan.Kind, rank, size, bytes int, nodes *plan.Nodes) *plan.Problem {
	p := &plan.Problem{Kind: kind, Rank: rank, Size: size, ElemBytes: 4, Nodes: nodes}
	share := bytes
	if kind.HasBlocks() {
		share = bytes / size
	}
	if share%4 != 0 {
		p.ElemBytes = 1
	}
	p.Count = share / p.ElemBytes
	return p
}

// explain explains a problem of ranks that have such means. Which of them comes before which is as in (*state).entry.
func (f *Config) explain(p *plan.Problem, has means) Explanation {
	p.NetPartBytes = f.Model.NetPartBytes
	e := Explanation{Kind: p.Kind, Bytes: p.TotalBytes(), Ranks: p.Size, Hosts: 1, Model: f.Model.Name}
	if p.Nodes != nil {
		e.Hosts = len(p.Nodes.Members)
	}
	whyLibrary := f.whyLibrary(p)
	has.library = has.library && !f.CheckAll
	chosen, why := f.choose(p)
	e.Plan, e.Why = chosen.Name, why
	for _, c := range plan.Rank(p, f.Model) {
		e.Candidates = append(e.Candidates, Candidate{Plan: c.Name, Source: c.Source, Seconds: c.Seconds})
	}
	if has.shared {
		e.Candidates = append(e.Candidates, arenaWays(p, f.Model, has.read)...)
		slices.SortStableFunc(e.Candidates, func(a, b Candidate) int { return cmp.Compare(a.Seconds, b.Seconds) })
		if name, why, _ := f.arenaWay(p, has.read); name != "" {
			e.Plan, e.Why = name, why
		}
		if (e.Plan == MemoryPlan || e.Plan == DirectPlan) && f.readsMapped(e.Plan, p, has.read) {
			e.Why += fmt.Sprintf(", direct if all vectors are from mpi.Alloc: %.2f µs", 1e6*mappedSeconds(p, f.Model))
		}
	}
	if has.library && whyLibrary != "" {
		e.Plan, e.Why = LibraryPlan, whyLibrary
	}
	for _, c := range e.Candidates {
		if c.Plan == e.Plan {
			e.Seconds = c.Seconds
		}
	}
	for _, a := range plan.Planners(p.Kind) {
		if why := a.Why(p); why != "" {
			e.Unfit = append(e.Unfit, Candidate{Plan: a.Name, Source: a.Source, Why: why})
		}
	}
	return e
}

// String is a table for people.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v of %d B over %d ranks on %d hosts: %s, %s", e.Kind, e.Bytes, e.Ranks, e.Hosts, e.Plan, e.Why)
	if e.Plan == LibraryPlan {
		fmt.Fprintf(&b, "\n* %-18s %15s  the system's MPI library, which is not priced\n", e.Plan, "-")
	} else {
		fmt.Fprintf(&b, ", %.2f µs predicted\n", e.Seconds*1e6)
	}
	if e.PassedOver != "" {
		fmt.Fprintf(&b, "  prices of model %s: %s\n", e.Model, e.PassedOver)
	}
	for _, c := range e.Candidates {
		mark := " "
		if c.Plan == e.Plan {
			mark = "*"
		}
		fmt.Fprintf(&b, "%s %-18s %12.2f µs  %s\n", mark, c.Plan, c.Seconds*1e6, c.Source)
	}
	for _, c := range e.Unfit {
		fmt.Fprintf(&b, "  %-18s %15s  %s\n", c.Plan, "-", c.Why)
	}
	return b.String()
}

// Plans lists the names of the plans that fit a collective of that size on c, for
// measuring each by Config.Force.
func Plans(kind plan.Kind, bytes int, c *mpi.Comm) []string {
	var names []string
	for _, cand := range Explain(kind, bytes, c).Candidates {
		names = append(names, cand.Plan)
	}
	return names
}
