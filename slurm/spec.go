package slurm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// DefaultPortBase is the first port where none are reserved.
const DefaultPortBase = 2222

// Place is one task of a program and the layout it is part of. Job.Place gives
// it for a Slurm step; other launchers fill it in themselves.
type Place struct {
	Layout *Layout
	Node   int   // index into Layout.Nodes
	Local  int   // local id on that node
	Rank   int   // as the launcher counts, may differ from the position
	Ports  []int // reserved on every node, ascending; nil when none are
	// Addresses, one per node, override the address rule; nil when there are none.
	Addresses []string
	Source    string // what told all this: "slurm", "fisterra", "single", ...
}

// Place is the task's place as SpecOf needs it.
func (j *Job) Place() Place {
	return Place{Layout: j.Layout, Node: j.Node, Local: j.Local, Rank: j.Rank, Ports: j.Ports, Addresses: j.TFServer, Source: "slurm"}
}

// SpecConfig says how a cluster description is made. The zero value with Roles
// set gives host names and reserved ports, or ports from 2222 up.
type SpecConfig struct {
	Roles Roles // one per position
	// Address turns a host name into what peers connect to; nil leaves the name.
	Address func(host string) (string, error)
	// StrictPorts makes missing reserved ports an error instead of using PortBase.
	StrictPorts bool
	// PortBase is the port of local id 0 where none are reserved; 0 is
	// DefaultPortBase.
	PortBase int
	// Own, if set, is asked whether an address (no port) is this host's own. Lists
	// put together from unordered output can be permuted, and only the host itself
	// can tell.
	Own func(address string) error
}

// Spec is the cluster by role and this task's part in it. All tasks of a step get
// the same Cluster.
type Spec struct {
	// Cluster has host:port by role in the order of positions. PS and Worker are
	// always there, the others if any task has them.
	Cluster  map[Role][]string
	Role     Role
	Index    int // within the role
	Rank     int
	Position int
	Address  string // host:port of this task
	Chief    bool   // this task is the chief; see Roles.Chief
	Source   string // "tfserver" where TFSERVER gave the addresses, else Place.Source
	Roles    Roles
	Place    Place
	first    string // host:port of position 0
}

// SpecOf makes the cluster description for a task: pure, the same input gives the
// same answer, and nothing is opened or looked up but through cfg.
//
// The k-th task of a node gets the k-th reserved port. Where fewer ports are
// reserved than a node has tasks the error is ErrPorts; ports in excess stay
// unused. Where none are reserved, local id k gets PortBase+k unless StrictPorts.
//
// Errors are *Error: ErrRoleCount with both numbers, ErrPorts, ErrAddress (also
// wrapping what cfg.Address answered), ErrRepeated for two nodes with one address,
// ErrNotOwn. Cost: linear in the number of tasks, one call of Address per node.
func SpecOf(place Place, cfg SpecConfig) (*Spec, error) {
	l := place.Layout
	if err := cfg.Roles.check(); err != nil {
		return nil, err
	}
	if err := cfg.Roles.CheckSize(l.Size()); err != nil {
		return nil, err
	}
	position, err := l.Position(place.Node, place.Local)
	if err != nil {
		return nil, err
	}
	ports, err := choosePorts(place.Ports, l, cfg)
	if err != nil {
		return nil, err
	}
	s := &Spec{
		Cluster: map[Role][]string{PS: {}, Worker: {}},
		Role:    cfg.Roles[position], Index: cfg.Roles.Index(position),
		Rank: place.Rank, Position: position,
		Source: place.Source, Roles: cfg.Roles, Place: place,
	}
	if chief, ok := cfg.Roles.Chief(); ok {
		s.Chief = chief == position
	}
	hosts, err := addresses(place, cfg)
	if err == nil && cfg.Own != nil {
		if own := cfg.Own(hosts[place.Node]); own != nil {
			err = &Error{Value: hosts[place.Node], Err: errors.Join(ErrNotOwn, own),
				Detail: fmt.Sprintf("the address of node %d (%s) is not this host's own: %v", place.Node, l.Nodes[place.Node], own)}
		}
	}
	if place.Addresses != nil {
		s.Source, err = "tfserver", from("TFSERVER", err)
	}
	if err != nil {
		return nil, err
	}
	for p, role := range cfg.Roles {
		node, local, err := l.Place(p)
		if err != nil {
			return nil, err
		}
		address := net.JoinHostPort(hosts[node], strconv.Itoa(ports[local]))
		s.Cluster[role] = append(s.Cluster[role], address)
		if p == 0 {
			s.first = address
		}
		if p == position {
			s.Address = address
		}
	}
	return s, nil
}

// choosePorts gives the port of each local id.
func choosePorts(reserved []int, l *Layout, cfg SpecConfig) ([]int, error) {
	most, where := 0, 0
	for node, n := range l.Tasks {
		if n > most {
			most, where = n, node
		}
	}
	if reserved != nil {
		if len(reserved) < most {
			return nil, &Error{Source: "SLURM_STEP_RESV_PORTS", Value: formatInts(reserved), Err: ErrPorts,
				Detail: fmt.Sprintf("%d reserved port(s) for %d tasks on node %d (%s); ask for srun --resv-ports=%d", len(reserved), most, where, l.Nodes[where], most)}
		}
		return reserved, nil
	}
	if cfg.StrictPorts {
		return nil, &Error{Source: "SLURM_STEP_RESV_PORTS", Err: ErrPorts,
			Detail: fmt.Sprintf("no reserved ports for %d tasks on node %d (%s), and reserved ones are required; ask for srun --resv-ports=%d", most, where, l.Nodes[where], most)}
	}
	base := cfg.PortBase
	if base == 0 {
		base = DefaultPortBase
	}
	if base < 1 || base+most-1 > MaxPort {
		return nil, &Error{Value: strconv.Itoa(base), Err: ErrRange,
			Detail: fmt.Sprintf("as port base for %d tasks on node %d (%s): ports must stay within 1 to %d", most, where, l.Nodes[where], MaxPort)}
	}
	ports := make([]int, most)
	for k := range ports {
		ports[k] = base + k
	}
	return ports, nil
}

// addresses gives each node's address, all different.
func addresses(place Place, cfg SpecConfig) ([]string, error) {
	l := place.Layout
	hosts := place.Addresses
	if hosts == nil {
		hosts = make([]string, len(l.Nodes))
		for i, node := range l.Nodes {
			hosts[i] = node
			if cfg.Address == nil {
				continue
			}
			var err error
			if hosts[i], err = cfg.Address(node); err != nil {
				return nil, &Error{Value: node, Err: errors.Join(ErrAddress, err), Detail: fmt.Sprintf("no address for node %d: %v", i, err)}
			}
		}
	}
	if len(hosts) != len(l.Nodes) {
		return nil, &Error{Err: ErrInconsistent, Detail: fmt.Sprintf("%d addresses for %d nodes", len(hosts), len(l.Nodes))}
	}
	seen := make(map[string]int, len(hosts))
	for i, h := range hosts {
		if _, err := netip.ParseAddr(h); h == "" || strings.ContainsAny(h, " \t\r\n,;|/\"'") || err != nil && strings.Contains(h, ":") {
			return nil, &Error{Value: h, Err: ErrAddress, Detail: fmt.Sprintf("node %d (%s) has no usable address: want a host name or an IP address without port", i, l.Nodes[i])}
		}
		if k, ok := seen[h]; ok {
			return nil, &Error{Value: h, Err: ErrRepeated, Detail: fmt.Sprintf("node %d (%s) and node %d (%s) have the same address", k, l.Nodes[k], i, l.Nodes[i])}
		}
		seen[h] = i
	}
	return hosts, nil
}
