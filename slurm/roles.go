package slurm

import (
	"fmt"
	"strings"
)

// Role is what a task does in training.
type Role string

// The roles. Chief and Master are two names for the worker that also writes
// summaries and checkpoints; Evaluator stands outside training.
const (
	PS        Role = "ps"
	Worker    Role = "worker"
	Chief     Role = "chief"
	Master    Role = "master"
	Evaluator Role = "evaluator"
)

// Roles gives the role of each position; see Layout.
type Roles []Role

// ParseRoles reads a list such as "ps,worker,worker". Blanks around names do not
// matter, letter case does not either. A name that is no role, and a second chief
// or master, are ErrRole.
func ParseRoles(text string) (Roles, error) {
	var roles Roles
	column := 1
	for item := range strings.SplitSeq(text, ",") {
		role := Role(strings.ToLower(strings.TrimSpace(item)))
		if !role.valid() {
			return nil, &Error{Value: text, Column: column, Err: ErrRole,
				Detail: fmt.Sprintf("%q is not a role; roles are ps, worker, chief, master, evaluator", strings.TrimSpace(item))}
		}
		roles = append(roles, role)
		column += len(item) + 1
	}
	return roles, roles.check()
}

func (r Role) valid() bool {
	switch r {
	case PS, Worker, Chief, Master, Evaluator:
		return true
	}
	return false
}

// check refuses what no program could run with.
func (r Roles) check() error {
	leader := -1
	for i, role := range r {
		if !role.valid() {
			return &Error{Value: string(role), Err: ErrRole, Detail: fmt.Sprintf("position %d has no role that exists; roles are ps, worker, chief, master, evaluator", i)}
		}
		if role != Chief && role != Master {
			continue
		}
		if leader >= 0 {
			return &Error{Value: r.String(), Err: ErrRole, Detail: fmt.Sprintf("positions %d (%s) and %d (%s): one chief at most, and master is another name for it", leader, r[leader], i, role)}
		}
		leader = i
	}
	return nil
}

// String is the comma list that ParseRoles reads.
func (r Roles) String() string {
	var b strings.Builder
	for i, role := range r {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(string(role))
	}
	return b.String()
}

// Count is the number of positions with a role.
func (r Roles) Count(role Role) int {
	n := 0
	for _, x := range r {
		if x == role {
			n++
		}
	}
	return n
}

// Index is the number of earlier positions with the same role: the task index.
func (r Roles) Index(position int) int { return r[:position].Count(r[position]) }

// Chief is the position of the chief: the chief or master if there is one, else
// worker 0. ok is false when there are no workers at all.
func (r Roles) Chief() (position int, ok bool) {
	first := -1
	for i, role := range r {
		switch {
		case role == Chief || role == Master:
			return i, true
		case role == Worker && first < 0:
			first = i
		}
	}
	return max(first, 0), first >= 0
}

// CheckSize compares the number of roles with the number of tasks: ErrRoleCount
// with both numbers.
func (r Roles) CheckSize(tasks int) error {
	word := "more"
	switch {
	case len(r) == tasks:
		return nil
	case tasks < len(r):
		word = "fewer"
	}
	return &Error{Err: ErrRoleCount, Detail: fmt.Sprintf("%s tasks than roles: %d tasks, %d roles (%d ps, %d worker)", word, tasks, len(r), r.Count(PS), r.Count(Worker))}
}

// Placement says where the parameter servers sit when roles are given by counts.
type Placement string

// The placements.
const (
	First  Placement = "first"  // the first positions, as in tf4slurm
	Spread Placement = "spread" // evenly over the nodes, at the lowest local ids
	Last   Placement = "last"   // the last positions
)

// ParsePlacement reads a placement word; "" is First.
func ParsePlacement(text string) (Placement, error) {
	switch p := Placement(text); p {
	case "":
		return First, nil
	case First, Spread, Last:
		return p, nil
	}
	return "", &Error{Value: text, Err: ErrRole, Detail: "not a placement; placements are first, spread, last"}
}

// CountRoles makes a role list of ps parameter servers and workers workers over
// a layout. The counts must add up to the layout's size (ErrRoleCount with both
// numbers).
func CountRoles(ps, workers int, where Placement, l *Layout) (Roles, error) {
	if ps < 0 || workers < 0 || ps > maxTasks || workers > maxTasks {
		return nil, &Error{Err: ErrRange, Detail: fmt.Sprintf("%d ps and %d workers: want counts from 0 to %d", ps, workers, maxTasks)}
	}
	where, err := ParsePlacement(string(where))
	if err != nil {
		return nil, err
	}
	size := l.Size()
	if ps+workers != size {
		return nil, &Error{Err: ErrRoleCount, Detail: fmt.Sprintf("%d ps and %d workers are %d roles, but there are %d tasks", ps, workers, ps+workers, size)}
	}
	roles := make(Roles, size)
	for i := range roles {
		roles[i] = Worker
	}
	switch where {
	case First:
		for i := range ps {
			roles[i] = PS
		}
	case Last:
		for i := range ps {
			roles[size-1-i] = PS
		}
	case Spread:
		for node, n := range spread(ps, l.Tasks) {
			for local := range n {
				roles[l.first[node]+local] = PS
			}
		}
	}
	return roles, nil
}

// spread divides ps over nodes with the given room: as even as the room allows,
// and a rest of fewer than one per node at even distances.
func spread(ps int, room []int) []int {
	got := make([]int, len(room))
	for ps > 0 {
		var open []int
		for node := range room {
			if got[node] < room[node] {
				open = append(open, node)
			}
		}
		turn := min(ps, len(open))
		for i := range turn {
			got[open[i*len(open)/turn]]++
		}
		ps -= turn
	}
	return got
}
