package slurm

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Batch describes a job for Batch.Script to write as an sbatch script. Zero
// values leave the matter to the site, except where a default is given.
type Batch struct {
	JobName      string // default "fisterra"
	Nodes        int    // default 1
	TasksPerNode int    // default 4
	CPUsPerTask  int
	Time         string // as sbatch has it: MINUTES, HH:MM:SS, DAYS-HH, ...
	Partition    string
	Account      string
	Constraint   string
	Array        string // indices of a job array, as in 0-3%2
	Modules      []string
	// MemoryPerTask in MB is asked for as given. 0 follows Memory.
	MemoryPerTask int
	Memory        MemoryRule
	// Roles is a role list, one per position; or PS and Workers count them and
	// Placement places the servers. With none of these one server and the rest
	// workers, which is the program's own default.
	Roles     Roles
	PS        int
	Workers   int
	Placement Placement
	// Signal is what Slurm sends the tasks before the time limit: "USR1@60" is 60 s before. If Requeue is set and
	// the tasks end by the signal, the script requeues the job. A signal that the program does not act on, or after
	// which the script cannot tell why the tasks have ended, is ErrSignal.
	Signal  string
	Requeue bool // the job starts again after preemption and node failure
	NoKill  bool // the job goes on with the nodes that are left
	// Wait is how many seconds after the first task has ended srun ends the others; 0: never. For
	// programs whose ranks do not notice that one is gone.
	Wait int
	// Output is the log, with sbatch's patterns; default "fisterra-%j.log", or
	// "fisterra-%A_%a.log" for an array. Its directory must exist, else Slurm fails
	// the job without a word. It is appended to, so that a requeued job keeps what it
	// wrote before.
	Output string
	Error  string // a second file for standard error; default the same
	// Checkpoint is a directory on a file system that all nodes share. It is made
	// and handed to the program as --checkpoint. The tasks of an array have one each
	// below it, by index.
	Checkpoint string
	// Out is the directory for the results, handed to the program as --out, and likewise with the tasks of an array.
	Out     string
	MPI     string   // srun --mpi: a name of its list, such as none, pmi2, pmix
	Command []string // default fisterra train
	Args    []string // after what the script adds
}

// MemoryRule says how a task's memory is found where it is not given.
type MemoryRule string

// The memory rules.
const (
	// MemorySite asks for nothing: the site's own default holds.
	MemorySite MemoryRule = "site"
	// MemoryPerCPU has the script compute it when the job runs: the CPUs of a task times the memory per CPU. That
	// is what the job was given (sbatch --mem-per-cpu), else what the partition gives by default (DefMemPerCPU),
	// else an even share of a node's memory over its CPUs, and no more than the job holds.
	MemoryPerCPU MemoryRule = "per-cpu"
)

// withDefaults fills in what is documented at the fields.
func (b Batch) withDefaults() Batch {
	if b.JobName == "" {
		b.JobName = "fisterra"
	}
	if b.Nodes == 0 {
		b.Nodes = 1
	}
	if b.TasksPerNode == 0 {
		b.TasksPerNode = 4
	}
	if b.Memory == "" {
		b.Memory = MemorySite
	}
	if b.Output == "" {
		b.Output = "fisterra-%j.log"
		if b.Array != "" {
			b.Output = "fisterra-%A_%a.log"
		}
	}
	if len(b.Command) == 0 {
		b.Command = []string{"fisterra", "train"}
	}
	return b
}

var (
	timeForm   = regexp.MustCompile(`^(\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED)$`)
	signalForm = regexp.MustCompile(`^(SIG)?([A-Z]+[0-9]*|[0-9]+)(@[0-9]+)?$`)
	arrayForm  = regexp.MustCompile(`^\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?$`)
	wordForm   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.,@+=/-]*$`)
	featForm   = regexp.MustCompile(`^[A-Za-z0-9_(\[][][A-Za-z0-9_.,&|()*+=:-]*$`)
	mpiForm    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*$`)
	moduleForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+/@=:-]*$`)
)

// maxMegabytes is more memory than a task can have, and little enough to be rounded up.
const maxMegabytes = 1 << 40

// check refuses values that a script cannot carry or a job cannot run with. The
// names in its errors are those of the command's options.
func (b *Batch) check() error {
	for _, c := range []struct {
		option, value, want string
		form                *regexp.Regexp
	}{
		{"--job-name", b.JobName, "letters, digits and _.,@+=/-", wordForm},
		{"--time", b.Time, "MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]] or UNLIMITED", timeForm},
		{"--partition", b.Partition, "letters, digits and _.,@+=/-", wordForm},
		{"--account", b.Account, "letters, digits and _.,@+=/-", wordForm},
		{"--constraint", b.Constraint, "features joined by & or |", featForm},
		{"--array", b.Array, "indices as in 0-3%2", arrayForm},
		{"--mpi", b.MPI, "a name of srun --mpi=list, such as none, pmi2, pmix, pmix_v4", mpiForm},
		{"--signal", b.Signal, "SIGNAL or SIGNAL@SECONDS, as in USR1@60; without B:, since the tasks must get it", signalForm},
	} {
		if c.value != "" && !c.form.MatchString(c.value) {
			return &Error{Source: c.option, Value: c.value, Err: ErrSyntax, Detail: "want " + c.want}
		}
	}
	for _, m := range b.Modules {
		if !moduleForm.MatchString(m) {
			return &Error{Source: "--module", Value: m, Err: ErrSyntax, Detail: "want NAME or NAME/VERSION"}
		}
	}
	for _, c := range []struct{ option, value string }{{"--output", b.Output}, {"--error", b.Error}, {"--checkpoint", b.Checkpoint}, {"--out", b.Out}} {
		if i := strings.IndexFunc(c.value, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
			return &Error{Source: c.option, Value: c.value, Column: i + 1, Err: ErrSyntax, Detail: "a control character in a file name"}
		}
	}
	for _, c := range []struct{ option, value string }{{"--output", b.Output}, {"--error", b.Error}} {
		if i := strings.IndexAny(c.value, "\"'\\"); i >= 0 {
			return &Error{Source: c.option, Value: c.value, Column: i + 1, Err: ErrSyntax, Detail: "sbatch's own options cannot hold quotes and backslashes"}
		}
	}
	for _, words := range [][]string{b.Command, b.Args} {
		for _, w := range words {
			if strings.ContainsRune(w, 0) {
				return &Error{Value: w, Err: ErrSyntax, Detail: "a zero byte in an argument"}
			}
		}
	}
	for _, c := range []struct {
		option             string
		value, least, most int
	}{
		{"--nodes", b.Nodes, 1, MaxRange}, {"--ntasks-per-node", b.TasksPerNode, 1, MaxRange}, {"--cpus-per-task", b.CPUsPerTask, 0, MaxRange},
		{"--memory", b.MemoryPerTask, 0, maxMegabytes}, {"--ps", b.PS, 0, maxTasks}, {"--workers", b.Workers, 0, maxTasks}, {"--wait", b.Wait, 0, math.MaxInt32},
	} {
		if c.value < c.least || c.value > c.most {
			return &Error{Source: c.option, Value: fmt.Sprint(c.value), Err: ErrRange, Detail: fmt.Sprintf("want %d to %d", c.least, c.most)}
		}
	}
	if b.Memory != MemorySite && b.Memory != MemoryPerCPU {
		return &Error{Source: "--memory", Value: string(b.Memory), Err: ErrSyntax, Detail: "want site, per-cpu or a number of MB per task"}
	}
	if b.MPI == "list" {
		return &Error{Source: "--mpi", Value: b.MPI, Err: ErrSyntax, Detail: "srun would print its list instead of starting the tasks; want a name of it, such as none, pmi2, pmix"}
	}
	if err := b.checkSignal(); err != nil {
		return err
	}
	return b.checkRoles()
}

// Trains reports whether the program is fisterra train, whose flags and signals are
// known here.
func (b Batch) Trains() bool {
	return len(b.Command) == 0 || len(b.Command) > 1 && b.Command[1] == "train"
}

// checkSignal checks the signal against what the program does on it. The script requeues the job at an exit code of
// 128+n, so whatever else ends tasks with that code would requeue it as well.
func (b *Batch) checkSignal() error {
	if b.Signal == "" {
		return nil
	}
	text, ahead, _ := strings.Cut(b.Signal, "@")
	name := signalName(text)
	refuse := func(format string, args ...any) error {
		return &Error{Source: "--signal", Value: b.Signal, Err: ErrSignal, Detail: fmt.Sprintf(format, args...)}
	}
	const want = "with --requeue want USR1, as in USR1@60"
	switch {
	case name == "":
		return refuse("no signal has this name or number; want USR1, as in USR1@60")
	case b.Requeue && name == "TERM":
		return refuse("scancel sends TERM, too, and the job would be queued again instead of cancelled; %s", want)
	case b.Requeue && name == "KILL":
		return refuse("tasks that are killed for want of memory end alike, and the job would be queued again for ever; %s", want)
	case b.Requeue && limitSeconds(b.Time) > 0 && secondsAhead(ahead) >= limitSeconds(b.Time):
		return refuse("%d s before the end of a job of %d s is at its beginning: it would be signalled and queued again for ever",
			secondsAhead(ahead), limitSeconds(b.Time))
	case !b.Trains() || name == "USR1":
		return nil
	case b.Requeue && name == "USR2":
		return refuse("fisterra train saves and goes on after USR2, so that the job would never be queued again; %s", want)
	case name == "TERM" || name == "USR2":
		return nil
	}
	return refuse("fisterra train does not save on %s; it saves and ends on USR1 and, without --requeue, TERM, and saves and goes on after USR2", name)
}

// secondsAhead is how long before the time limit sbatch sends the signal, given the text after @.
func secondsAhead(text string) int {
	if text == "" {
		return 60
	}
	n, _ := strconv.Atoi(text)
	return n
}

// limitSeconds is a time limit as sbatch reads it, in seconds, rounded up to minutes: MINUTES[:SECONDS],
// HOURS:MINUTES:SECONDS or DAYS-HOURS[:MINUTES[:SECONDS]]. 0 is no limit.
func limitSeconds(text string) int {
	days, rest, dayed := strings.Cut(text, "-")
	if !dayed {
		days, rest = "0", text
	}
	parts := strings.Split(rest, ":")
	units := []int{60, 1} // minutes, seconds
	if dayed || len(parts) == 3 {
		units = []int{3600, 60, 1}
	}
	n, _ := strconv.Atoi(days)
	seconds := n * 24 * 3600
	for i, part := range parts[:min(len(parts), len(units))] {
		n, _ := strconv.Atoi(part)
		seconds += n * units[i]
	}
	const minute = 60
	return (seconds + minute - 1) / minute * minute
}

// signalName is a signal's name without SIG, given with or without it or by number; "" if
// there is none. The real-time signals have numbers only.
func signalName(text string) string {
	if n, err := strconv.Atoi(text); err == nil {
		const last = 64
		if name := unix.SignalName(syscall.Signal(n)); name != "" || n < 1 || n > last {
			return strings.TrimPrefix(name, "SIG")
		}
		return text
	}
	name := strings.TrimPrefix(text, "SIG")
	if unix.SignalNum("SIG"+name) == 0 {
		return ""
	}
	return name
}

func (b *Batch) checkRoles() error {
	tasks := b.Nodes * b.TasksPerNode
	if _, err := ParsePlacement(string(b.Placement)); err != nil {
		return from("--placement", err)
	}
	if b.Roles != nil {
		if b.PS != 0 || b.Workers != 0 {
			return &Error{Source: "--roles", Value: b.Roles.String(), Err: ErrRole, Detail: "roles are given as a list and as counts; one is enough"}
		}
		if b.Placement != "" {
			return &Error{Source: "--placement", Value: string(b.Placement), Err: ErrRole, Detail: "roles are given as a list, which says where the servers sit"}
		}
		if err := b.Roles.check(); err != nil {
			return err
		}
		return from("--roles", b.Roles.CheckSize(tasks))
	}
	if b.PS+b.Workers != 0 && b.PS+b.Workers != tasks {
		return &Error{Err: ErrRoleCount, Detail: fmt.Sprintf("%d ps and %d workers are %d roles, but %d nodes with %d tasks each make %d tasks", b.PS, b.Workers, b.PS+b.Workers, b.Nodes, b.TasksPerNode, tasks)}
	}
	return nil
}
