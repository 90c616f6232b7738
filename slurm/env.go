package slurm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Lookup answers for one environment variable, as os.LookupEnv does.
type Lookup = func(name string) (value string, ok bool)

// Job is what Slurm tells one task of a step. It is the step's view: a step may
// use fewer nodes than the job, and node indices count within the step.
type Job struct {
	Allocation
	StepID string // "0"; "" when the variable is not set
	Rank   int    // SLURM_PROCID
	Node   int    // index into Layout.Nodes: SLURM_NODEID, but for some nodes of heterogeneous steps
	Local  int    // SLURM_LOCALID
	Layout *Layout

	NodeName    string // SLURMD_NODENAME
	GTIDs       []int  // ranks on this node by local id; nil when not told
	Ports       []int  // reserved on every node of the step, ascending; nil when none are
	CPUsPerTask int    // 0 when --cpus-per-task was not given
	CPUsOnNode  int    // 0 when not told
	MPI         string // SLURM_MPI_TYPE: "pmi2", "pmix", ...; "" when not told
	// TFServer holds the addresses of TFSERVER, one per node; nil when it is not set.
	TFServer []string
}

// Size is the number of tasks in the step.
func (j *Job) Size() int { return j.Layout.Size() }

// Position is the task's place in the role list; see Layout.
func (j *Job) Position() int { return j.Layout.first[j.Node] + j.Local }

// CPUs is the number of CPUs the task may count on: its own if it asked for a
// number, else an even share of what the step has on this node, at least 1.
func (j *Job) CPUs() int {
	if j.CPUsPerTask > 0 {
		return j.CPUsPerTask
	}
	return max(1, j.CPUsOnNode/j.Layout.Tasks[j.Node])
}

// FromEnv reads the environment of a task that srun started.
//
// Variables of the step win over those of the job, which describe something else if the step has only part of the
// job's nodes. If a variable is missing that every task has, the error is ErrMissing and names the variable. Values
// that contradict each other (SLURM_NTASKS against the tasks per node, SLURMD_NODENAME against the node list, a
// rank against SLURM_GTIDS) are ErrInconsistent: going on would give the task another task's place.
//
// Outside a job the error is ErrNotSlurm; in a batch script or a shell of salloc,
// where SLURM_NTASKS and SLURM_PROCID are set but no step runs, ErrNoStep; under
// mpirun, prterun, mpiexec or fisterra run inside a step, where SLURM_PROCID is that of the launcher
// or its daemon, ErrDaemonStep.
func FromEnv(lookup Lookup) (*Job, error) {
	e := env{lookup: lookup}
	if !e.inStep() {
		if e.has("SLURM_JOB_ID", "SLURM_JOBID") {
			return nil, &Error{Source: "SLURM_JOB_ID", Value: e.get("SLURM_JOB_ID", "SLURM_JOBID"), Err: ErrNoStep}
		}
		return nil, &Error{Err: ErrNotSlurm, Detail: "not inside a Slurm job: neither SLURM_JOB_ID nor a SLURM_STEP_ variable is set"}
	}
	if name := e.otherLauncher(); name != "" {
		return nil, &Error{Source: name, Value: e.get(name), Err: ErrDaemonStep,
			Detail: "this rank was started by another launcher inside the Slurm job; SLURM_PROCID and its like are those of the launcher or its daemons"}
	}
	j := &Job{Allocation: e.allocation()}
	j.StepID = e.get("SLURM_STEP_ID", "SLURM_STEPID")
	j.NodeName = e.get("SLURMD_NODENAME")
	j.MPI = e.get("SLURM_MPI_TYPE")
	j.CPUsPerTask = e.optional("SLURM_CPUS_PER_TASK", maxTasks)
	j.CPUsOnNode = e.optional("SLURM_CPUS_ON_NODE", maxTasks)
	told := sources{
		size:  e.which("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
		tasks: e.which("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
		nodes: "SLURM_STEP_NODELIST",
	}
	size := e.number(maxTasks, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
	j.Node = e.number(MaxHosts-1, "SLURM_NODEID")
	j.Local = e.number(maxTasks-1, "SLURM_LOCALID")
	j.Rank = e.number(maxTasks-1, "SLURM_PROCID")
	if e.err == nil {
		e.err = e.layout(j, size, &told)
	}
	if e.err == nil {
		e.err = e.gtids(j)
	}
	if e.err == nil {
		e.err = e.ports(j)
	}
	if e.err == nil {
		j.findNode()
		e.err = j.check(size, told)
	}
	if e.err != nil {
		return nil, e.err
	}
	return j, nil
}

// sources names the variables that the step's size, nodes and tasks per node were read from.
type sources struct{ size, nodes, tasks string }

// env reads variables and keeps the first error.
type env struct {
	lookup Lookup
	err    error
}

func (e *env) has(names ...string) bool {
	for _, name := range names {
		if v, ok := e.lookup(name); ok && v != "" {
			return true
		}
	}
	return false
}

// get is the first of the variables that is set and not empty.
func (e *env) get(names ...string) string {
	v, _ := e.lookup(e.which(names...))
	return v
}

// which names the variable that get reads: the last one if none is set.
func (e *env) which(names ...string) string {
	for _, name := range names {
		if v, ok := e.lookup(name); ok && v != "" {
			return name
		}
	}
	return names[len(names)-1]
}

// number reads the first of the variables that is set; one must be.
func (e *env) number(limit int, names ...string) int {
	if name := e.which(names...); e.has(name) {
		return e.parse(name, e.get(name), limit)
	}
	if e.err == nil {
		detail := "srun sets it in every task"
		if len(names) > 1 {
			detail = "nor is " + strings.Join(names[:len(names)-1], " or ") + "; srun sets both in every task"
		}
		e.err = &Error{Source: names[len(names)-1], Err: ErrMissing, Detail: detail}
	}
	return 0
}

// optional reads a variable that may be absent, as 0.
func (e *env) optional(name string, limit int) int {
	if v, ok := e.lookup(name); ok && v != "" {
		return e.parse(name, v, limit)
	}
	return 0
}

func (e *env) parse(name, value string, limit int) int {
	n, err := parseNumber(value, limit)
	if err != nil && e.err == nil {
		e.err = &Error{Source: name, Value: value, Err: err, Detail: fmt.Sprintf("want a whole number from 0 to %d", limit)}
	}
	return n
}

// Slurm numbers the steps that are no steps of ranks (batch script, interactive
// shell, external) downwards from this.
const firstReservedStep = 0xfffffff0

// inStep reports whether the process is a task of an srun step.
func (e *env) inStep() bool {
	if id := e.get("SLURM_STEP_ID", "SLURM_STEPID"); id != "" {
		n, err := strconv.ParseUint(id, 10, 32)
		return err != nil || n < firstReservedStep
	}
	return e.has("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_RESV_PORTS")
}

// otherLauncher names the variable which shows that this process is a rank of mpirun, prterun or mpiexec, which
// start one Slurm task per node for their own daemons, or of fisterra run, which is a task itself.
//
// Ranks of prterun and prun show it by PMIx's variables only; in a task of srun --mpi=pmix the namespace is
// Slurm's.
//
// mpiexec (Hydra) starts its daemons by a plain srun, so the ranks inherit what a site whose default is pmi2 gives
// every task. Then rank and size tell, which are Hydra's own: they differ from the task's unless each node has one
// rank, and that rank is at the task's place.
func (e *env) otherLauncher() string {
	for _, name := range []string{"FISTERRA_RANK", "OMPI_COMM_WORLD_RANK"} {
		if e.has(name) {
			return name
		}
	}
	if e.has("PMIX_RANK") && e.has("PMIX_NAMESPACE") && !strings.HasPrefix(e.get("PMIX_NAMESPACE"), "slurm.pmix.") {
		return "PMIX_RANK"
	}
	if !e.has("MPI_LOCALRANKID") {
		return ""
	}
	ofStep := e.get("PMI_RANK") == e.get("SLURM_PROCID") && e.get("PMI_SIZE") == e.get("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
	for _, name := range []string{"PMI_RANK", "PMI_ID"} {
		if e.has(name) && (e.get("SLURM_MPI_TYPE") != "pmi2" || !ofStep) {
			return name
		}
	}
	return ""
}

// layout reads the step's nodes and the tasks on each. Where TFSERVER stands in for the nodes, it sets told.nodes
// to that.
func (e *env) layout(j *Job, size int, told *sources) error {
	var tasks []int
	if e.has(told.tasks) {
		var err error
		if tasks, err = ParseTasksPerNode(e.get(told.tasks)); err != nil {
			return from(told.tasks, err)
		}
	}
	var nodes []string
	if e.has(told.nodes) {
		var err error
		if nodes, err = Expand(e.get(told.nodes)); err != nil {
			return from(told.nodes, err)
		}
	}
	if text, ok := e.lookup("TFSERVER"); ok {
		names := nodes
		if names == nil {
			names = make([]string, len(tasks))
		}
		var err error
		if j.TFServer, err = ParseTFServer(text, names); err != nil {
			return err
		}
	}
	if nodes == nil && j.TFServer != nil {
		nodes, told.nodes = j.TFServer, "TFSERVER"
	}
	if nodes == nil {
		return &Error{Source: "SLURM_STEP_NODELIST", Err: ErrMissing, Detail: "nor is TFSERVER, which may stand in for it; srun sets it in every task"}
	}
	if tasks == nil {
		if len(nodes) != 1 {
			return &Error{Source: "SLURM_STEP_TASKS_PER_NODE", Err: ErrMissing, Detail: fmt.Sprintf("%d tasks on %d nodes can lie in many ways; srun sets it in every task", size, len(nodes))}
		}
		tasks = []int{size}
	}
	var err error
	if j.Layout, err = NewLayout(nodes, tasks); errors.Is(err, ErrRange) {
		return from(told.tasks, err)
	}
	return from(told.nodes, err)
}

func (e *env) gtids(j *Job) error {
	text := e.get("SLURM_GTIDS")
	if text == "" {
		return nil
	}
	var err error
	j.GTIDs, err = parseRanks(text)
	return from("SLURM_GTIDS", err)
}

func (e *env) ports(j *Job) error {
	text := e.get("SLURM_STEP_RESV_PORTS")
	if text == "" {
		return nil
	}
	var err error
	j.Ports, err = ParsePorts(text)
	return from("SLURM_STEP_RESV_PORTS", err)
}

// findNode sets the node's index by its name, if the list has that name. Slurm sorts the nodes of a heterogeneous
// step, with their numbers of tasks, by name, but numbers the nodes by component; and not every such step says that
// it is one.
func (j *Job) findNode() {
	if i := slices.Index(j.Layout.Nodes, j.NodeName); i >= 0 && j.Node < len(j.Layout.Nodes) {
		j.Node = i
	}
}

// check compares what the variables say about this task with each other.
func (j *Job) check(size int, told sources) error {
	contradiction := func(source, value, format string, args ...any) error {
		return &Error{Source: source, Value: value, Err: ErrInconsistent, Detail: fmt.Sprintf(format, args...)}
	}
	l := j.Layout
	if l.Size() != size {
		return contradiction(told.tasks, FormatTasksPerNode(l.Tasks), "%d tasks in all, but %s is %d", l.Size(), told.size, size)
	}
	if j.Rank >= size {
		return contradiction("SLURM_PROCID", strconv.Itoa(j.Rank), "the step has %d tasks, ranks 0 to %d", size, size-1)
	}
	if j.Node >= len(l.Nodes) {
		return contradiction("SLURM_NODEID", strconv.Itoa(j.Node), "the step has %d nodes, indices 0 to %d", len(l.Nodes), len(l.Nodes)-1)
	}
	if n := l.Tasks[j.Node]; j.Local >= n {
		return contradiction("SLURM_LOCALID", strconv.Itoa(j.Local), "node %d (%s) has %d tasks, local ids 0 to %d", j.Node, l.Nodes[j.Node], n, n-1)
	}
	// When TFSERVER had to stand in for the node list there are no names to compare.
	if told.nodes != "TFSERVER" && j.NodeName != "" && j.NodeName != l.Nodes[j.Node] {
		return contradiction("SLURMD_NODENAME", j.NodeName, "node %d of the step's list is %s", j.Node, l.Nodes[j.Node])
	}
	if j.GTIDs != nil {
		if n := l.Tasks[j.Node]; len(j.GTIDs) != n {
			return contradiction("SLURM_GTIDS", formatInts(j.GTIDs), "%d ranks, but node %d (%s) has %d tasks", len(j.GTIDs), j.Node, l.Nodes[j.Node], n)
		}
		if r := j.GTIDs[j.Local]; r != j.Rank {
			return contradiction("SLURM_GTIDS", formatInts(j.GTIDs), "local id %d is rank %d there, but SLURM_PROCID is %d", j.Local, r, j.Rank)
		}
	}
	return nil
}

// parseRanks reads a comma list of ranks.
func parseRanks(text string) ([]int, error) {
	var ranks []int
	for item := range strings.SplitSeq(text, ",") {
		n, err := parseNumber(item, maxTasks-1)
		if err != nil {
			return nil, &Error{Value: text, Err: ErrSyntax, Detail: fmt.Sprintf("%q is not a rank; want ranks separated by commas", item)}
		}
		ranks = append(ranks, n)
	}
	return ranks, nil
}

func formatInts(v []int) string {
	var b strings.Builder
	for i, n := range v {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}
