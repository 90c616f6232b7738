package collective

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/fisterra-hpc/fisterra/collective/plan"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// Site is what has been measured at a site: which plan is best for a
// collective, a number of ranks and a size. fisterra bench tune writes it.
type Site struct {
	Name           string      `json:"name"`
	Model          *plan.Model `json:"model,omitempty"`
	ModelTransport string      `json:"model_transport,omitempty"` // as Rule.Transport
	Rules          []Rule      `json:"rules"`
}

// Rule says which plan to take for messages up to a size (Problem.TotalBytes)
// on a number of ranks and hosts.
type Rule struct {
	Collective string `json:"collective"`
	Ranks      int    `json:"ranks"`
	Hosts      int    `json:"hosts"`
	UpToBytes  int    `json:"up_to_bytes"` // -1: any
	Plan       string `json:"plan"`
	Transport  string `json:"transport,omitempty"` // as Place.Transport; "": any
}

// over is the site with its model and those of its rules that hold for a transport.
func (s *Site) over(transport string) *Site {
	own := *s
	own.Rules = slices.DeleteFunc(slices.Clone(s.Rules), func(r Rule) bool { return !holds(r.Transport, transport) })
	if !holds(s.ModelTransport, transport) {
		own.Model, own.ModelTransport = nil, ""
	}
	return &own
}

// holds reports whether what was measured over a transport, "" if that is not known, holds for one.
func holds(measured, transport string) bool { return measured == "" || measured == transport }

// ReadSite reads a site file, and nothing but that: a model, rules, which all say up to which size they hold, or both. The site has
// the name that is in it or, without one, that of the file. Errors name the file.
func ReadSite(r io.Reader, file string) (*Site, error) {
	s := &Site{Name: file}
	if err := s.read(r); err != nil {
		return nil, fmt.Errorf("collective: site file %s: %w", file, err)
	}
	return s, nil
}

// read reads a site file, whose site has the name of s unless it has one.
func (s *Site) read(r io.Reader) error {
	file := json.NewDecoder(r)
	var text json.RawMessage
	if err := file.Decode(&text); err == io.EOF {
		return errors.New("it is empty: want what fisterra bench tune writes")
	} else if err != nil {
		return err
	}
	if _, more := file.Token(); more != io.EOF {
		return errors.New("there is more after the site")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	if s.Model == nil && s.Rules == nil {
		return errors.New(`there is neither "model" nor "rules" in it: want what fisterra bench tune writes`)
	}
	var given struct {
		Rules []struct {
			UpToBytes *int `json:"up_to_bytes"`
		} `json:"rules"`
	}
	if err := json.Unmarshal(text, &given); err != nil {
		return err
	}
	for i, r := range given.Rules {
		if r.UpToBytes == nil { // 0 is for barriers, and not what somebody means who leaves it out
			return fmt.Errorf("rule %d: up_to_bytes is missing: want a size in bytes, or -1 for any", i)
		}
	}
	return nil
}

// Write writes a site file.
func (s *Site) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// Check reports the first rule that makes no sense.
func (s *Site) Check() error {
	if err := s.check(); err != nil {
		return fmt.Errorf("collective: site %s: %w", s.Name, err)
	}
	return nil
}

func (s *Site) check() error {
	for i, r := range s.Rules {
		kind, err := plan.ParseKind(r.Collective)
		if err != nil {
			return fmt.Errorf("rule %d: %w", i, err)
		}
		if !known(kind, r.Plan) && r.Plan != LibraryPlan {
			return fmt.Errorf("rule %d: no plan for %v is called %q; they are %v", i, kind, r.Plan, append(knownNames(kind), LibraryPlan))
		}
		if r.Transport != "" && !slices.Contains(transports, r.Transport) {
			return fmt.Errorf("rule %d: no transport is called %q; they are %v", i, r.Transport, transports)
		}
		if r.Ranks < 1 || r.Hosts < 1 || r.UpToBytes < -1 {
			return fmt.Errorf("rule %d: %d ranks on %d hosts, up to %d B makes no sense", i, r.Ranks, r.Hosts, r.UpToBytes)
		}
	}
	switch {
	case s.ModelTransport != "" && !slices.Contains(transports, s.ModelTransport):
		return fmt.Errorf("model_transport: no transport is called %q; they are %v", s.ModelTransport, transports)
	case s.Model != nil:
		return s.Model.Check()
	case s.ModelTransport != "":
		return fmt.Errorf("model_transport %s: there is no model that was measured over it", s.ModelTransport)
	}
	return nil
}

// pick finds the plan for a problem.
func (s *Site) pick(p *plan.Problem) (plan.Planner, bool) {
	r, ok := s.rule(p)
	if !ok {
		return plan.Planner{}, false
	}
	a, ok := plan.Named(p.Kind, r.Plan)
	return a, ok && a.Why(p) == ""
}

// rule finds the rule with the smallest size that covers the problem.
func (s *Site) rule(p *plan.Problem) (Rule, bool) {
	hosts := 1
	if p.Nodes != nil {
		hosts = len(p.Nodes.Members)
	}
	bytes := p.TotalBytes()
	best := -1
	for i, r := range s.Rules {
		if r.Collective != p.Kind.String() || r.Ranks != p.Size || r.Hosts != hosts || r.UpToBytes >= 0 && r.UpToBytes < bytes {
			continue
		}
		if best < 0 || s.Rules[best].UpToBytes < 0 || r.UpToBytes >= 0 && r.UpToBytes < s.Rules[best].UpToBytes {
			best = i
		}
	}
	if best < 0 {
		return Rule{}, false
	}
	return s.Rules[best], true
}

// SetModel puts a model that was measured on c into the site, in place of another.
func (s *Site) SetModel(m *plan.Model, c *mpi.Comm) { s.Model, s.ModelTransport = m, transportOf(c) }

// Add puts a rule into the table, in place of one for the same case, of its transport or of any.
func (s *Site) Add(r Rule) {
	i := slices.IndexFunc(s.Rules, func(o Rule) bool {
		return o.Collective == r.Collective && o.Ranks == r.Ranks && o.Hosts == r.Hosts && o.UpToBytes == r.UpToBytes &&
			(o.Transport == r.Transport || o.Transport == "")
	})
	if i >= 0 {
		s.Rules[i] = r
		return
	}
	s.Rules = append(s.Rules, r)
}
