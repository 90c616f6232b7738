package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/fisterra-hpc/fisterra/ps"
	"github.com/fisterra-hpc/fisterra/slurm"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func templateCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "Write job scripts",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(slurmTemplateCommand(env), &cobra.Command{
		Use:   "tutorials",
		Short: "List the reference tutorials that --tutorial knows, and what their version arguments stood for",
		Args:  noArguments,
		RunE:  func(*cobra.Command, []string) error { return listTutorials(env.stdout) },
	})
	return cmd
}

// templateFlags are the command line of a job script.
type templateFlags struct {
	batch       slurm.Batch
	memory      string
	roles       string
	placement   string
	program     string
	tutorial    string
	versionArgs string
	flags       *pflag.FlagSet
}

func slurmTemplateCommand(env environment) *cobra.Command {
	t := &templateFlags{}
	cmd := &cobra.Command{
		Use:   "slurm [flags] [-- train flags]",
		Short: "Write an sbatch script that trains",
		Long: `slurm prints an sbatch script for a training run; "fisterra template slurm ... | sbatch" submits it. sbatch's own
options work besides, as in "... | sbatch --qos=long --exclusive", and go before those of the script; --array is for
this command, since each task needs a directory of its own. What stands after -- goes to fisterra train, whose roles and --checkpoint the script sets itself.

With --signal=USR1@60 Slurm tells the ranks 60 s before the time limit: they save to --checkpoint and end
with exit code 138; with --requeue the job then queues itself again, of an array the task alone, and goes on at
the saved step. Without --requeue TERM@60 does the same with exit code 143, and after USR2@60 they save and go
on. scancel, preemption and the time limit itself send SIGTERM: they save and end with 143.

--tutorial starts from one of the reference tutorials' jobs ("fisterra template tutorials" lists them); any
other flag given replaces what the tutorial has. The program of with-hooks has flags of its own, which stand
after --: roles and --checkpoint are not for it.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) > 0 && dash != 0 {
				return usageError(fmt.Errorf("template slurm: %q is no flag; flags of the training run stand after --", args[0]))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := t.script(args, env.stderr)
			if err != nil {
				return usageError(err)
			}
			_, err = io.WriteString(env.stdout, text)
			return err
		},
	}
	f := cmd.Flags()
	t.flags = f
	b := &t.batch
	f.StringVarP(&b.JobName, "job-name", "J", "", "name of the job (default fisterra)")
	f.IntVarP(&b.Nodes, "nodes", "N", 1, "nodes")
	f.IntVar(&b.TasksPerNode, "ntasks-per-node", 4, "ranks per node")
	f.IntVarP(&b.CPUsPerTask, "cpus-per-task", "c", 0, "CPUs of a rank (default: the site's)")
	f.StringVarP(&b.Time, "time", "t", "", "time limit, as in 30, 1:00:00, 2-12 (default: the partition's)")
	f.StringVarP(&b.Partition, "partition", "p", "", "partition (default: the site's)")
	f.StringVarP(&b.Account, "account", "A", "", "account to charge")
	f.StringVarP(&b.Constraint, "constraint", "C", "", "features that the nodes must have")
	f.StringVarP(&b.Array, "array", "a", "", "indices of a job array, as in 0-3%2; each has its own directory below --checkpoint and --out")
	f.StringArrayVar(&b.Modules, "module", nil, "module to load, as in openmpi/4.1 (may be repeated)")
	f.StringVar(&t.memory, "memory", "site", "memory of a rank: site (its default), per-cpu (found when the job runs: the job's own, else the partition's DefMemPerCPU, else an even share of the node, at most what the job holds, times the rank's CPUs), or a size such as 2500, 8G (MB without a letter)")
	f.StringVar(&t.roles, "roles", "", "role of each position, such as ps,worker,worker (instead of --ps and --workers)")
	f.IntVar(&b.PS, "ps", 0, "number of parameter servers (default 1)")
	f.IntVar(&b.Workers, "workers", 0, "number of workers (default: all other ranks)")
	f.StringVar(&t.placement, "placement", "", "where the parameter servers sit: first, spread, last")
	f.StringVar(&b.Signal, "signal", "", "what Slurm sends the ranks before the time limit, as in USR1@60 (without --requeue also TERM, USR2)")
	f.BoolVar(&b.Requeue, "requeue", false, "queue the job again after preemption, node failure and --signal")
	f.BoolVar(&b.NoKill, "no-kill", false, "go on with the nodes that are left when one fails")
	f.StringVarP(&b.Output, "output", "o", "", "log, appended to (default fisterra-%j.log, of an array fisterra-%A_%a.log)")
	f.StringVarP(&b.Error, "error", "e", "", "log of standard error (default: the same)")
	f.StringVar(&b.Checkpoint, "checkpoint", "", "directory on a shared file system to save state in, and to resume from")
	f.StringVar(&b.Out, "out", "", "directory on a shared file system for the results")
	f.StringVar(&b.MPI, "mpi", "", "srun's way to start ranks, one of srun --mpi=list, such as none, pmi2, pmix (default: the site's)")
	f.StringVar(&t.program, "program", "", "path of fisterra on the nodes, which is started as PROGRAM train; with --tutorial with-hooks of that program (default: the absolute path of this one, unless go run has built it)")
	f.StringVar(&t.tutorial, "tutorial", "", "start from a reference tutorial's job: "+strings.Join(tutorialNames(), ", "))
	f.StringVar(&t.versionArgs, "version-args", "", "the version arguments that a tutorial's script was given, as in 17,2: the script notes which versions they stood for")
	for _, name := range []string{"time", "partition", "version-args"} { // instead of the tutorial's; without arguments
		f.SetAnnotation(name, mayBeEmpty, nil)
	}
	return cmd
}

// script makes the script's text; notes about what it will do go to notes.
func (t *templateFlags) script(args []string, notes io.Writer) (string, error) {
	b, err := t.job()
	if err != nil {
		return "", err
	}
	if err := t.checkProgram(&b, args); err != nil {
		return "", err
	}
	b.Args = args
	text, err := b.Script()
	if err != nil {
		return "", err
	}
	if t.flags.Changed("version-args") {
		rows, err := versionRows(t.versionArgs)
		if err != nil {
			return "", err
		}
		first, rest, _ := strings.Cut(text, "\n")
		text = first + "\n# The reference tutorial with version arguments " + t.versionArgs + ": " + strings.Join(rows, "; ") + ".\n" + rest
	}
	if dir := os.TempDir(); t.program == "" && isBelow(b.Command[0], dir) {
		fmt.Fprintf(notes, "fisterra: the script starts %s, and %s is often each node's own: --program names another, such as bin/fisterra after make build on a shared file system\n", b.Command[0], dir)
	}
	if b.Requeue && b.Checkpoint == "" {
		fmt.Fprintln(notes, "fisterra: --requeue without --checkpoint: a requeued job begins anew")
	}
	for _, log := range []string{b.Output, b.Error} {
		dir := filepath.Dir(log)
		if _, err := os.Stat(dir); log != "" && !strings.Contains(dir, "%") && err != nil {
			fmt.Fprintf(notes, "fisterra: the log's directory %s is not there (%v); Slurm ends a job whose log it cannot write without a word\n", dir, err)
		}
	}
	return text, nil
}

// job is the tutorial's job, or an empty one, with what the flags say.
func (t *templateFlags) job() (slurm.Batch, error) {
	from := t.batch
	b := slurm.Batch{Nodes: from.Nodes, TasksPerNode: from.TasksPerNode}
	if t.tutorial != "" {
		x, ok := slurm.TutorialNamed(t.tutorial)
		if !ok {
			return b, fmt.Errorf("--tutorial %q: there are %s", t.tutorial, strings.Join(tutorialNames(), ", "))
		}
		b = x.Batch
	}
	var wrong error
	for name, set := range map[string]func(){
		"job-name":        func() { b.JobName = from.JobName },
		"nodes":           func() { b.Nodes = positive(t.flags, "nodes", from.Nodes, &wrong) },
		"ntasks-per-node": func() { b.TasksPerNode = positive(t.flags, "ntasks-per-node", from.TasksPerNode, &wrong) },
		"cpus-per-task":   func() { b.CPUsPerTask = positive(t.flags, "cpus-per-task", from.CPUsPerTask, &wrong) },
		"time":            func() { b.Time = from.Time },
		"partition":       func() { b.Partition = from.Partition },
		"account":         func() { b.Account = from.Account },
		"constraint":      func() { b.Constraint = from.Constraint },
		"array":           func() { b.Array = from.Array },
		"module":          func() { b.Modules = from.Modules },
		"signal":          func() { b.Signal = from.Signal },
		"requeue":         func() { b.Requeue = from.Requeue },
		"no-kill":         func() { b.NoKill = from.NoKill },
		"output":          func() { b.Output = from.Output },
		"error":           func() { b.Error = from.Error },
		"checkpoint":      func() { b.Checkpoint = from.Checkpoint },
		"out":             func() { b.Out = from.Out },
		"mpi":             func() { b.MPI = from.MPI },
		"placement":       func() { b.Placement = slurm.Placement(t.placement) },
	} {
		if t.flags.Changed(name) {
			set()
		}
	}
	if wrong != nil {
		return b, wrong
	}
	if t.flags.Changed("memory") {
		if err := setMemory(&b, t.memory); err != nil {
			return b, err
		}
	}
	if err := t.setRoles(&b); err != nil {
		return b, err
	}
	return b, t.setProgram(&b)
}

func positive(f *pflag.FlagSet, name string, n int, wrong *error) int {
	if n < 1 {
		*wrong = fmt.Errorf("--%s %d: at least 1 is needed", name, n)
	}
	return n
}

// setMemory reads a rule, or a size with a letter as sbatch has it.
func setMemory(b *slurm.Batch, text string) error {
	switch rule := slurm.MemoryRule(text); rule {
	case slurm.MemorySite, slurm.MemoryPerCPU:
		b.Memory, b.MemoryPerTask = rule, 0
		return nil
	}
	digits, factor := text, 1
	if n := len(text); n > 0 {
		switch text[n-1] &^ 0x20 {
		case 'M':
			digits = text[:n-1]
		case 'G':
			digits, factor = text[:n-1], 1<<10
		case 'T':
			digits, factor = text[:n-1], 1<<20
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > 1<<40/factor {
		return fmt.Errorf("--memory %q: want site, per-cpu, or the size for a rank such as 2500 (MB), 8G", text)
	}
	b.Memory, b.MemoryPerTask = slurm.MemorySite, n*factor
	return nil
}

// setRoles takes a list or counts. A count that is not given follows from the other count and the number of ranks.
func (t *templateFlags) setRoles(b *slurm.Batch) error {
	counted := t.flags.Changed("ps") || t.flags.Changed("workers")
	if t.roles != "" {
		if counted || t.flags.Changed("placement") {
			return errors.New("--roles and --ps, --workers, --placement exclude each other")
		}
		roles, err := slurm.ParseRoles(t.roles)
		b.Roles, b.PS, b.Workers = roles, 0, 0
		if err != nil {
			return fmt.Errorf("--roles: %w", err)
		}
		return nil
	}
	if !counted {
		return nil
	}
	b.Roles, b.PS, b.Workers = nil, t.batch.PS, t.batch.Workers
	ranks := b.Nodes * b.TasksPerNode
	if !t.flags.Changed("ps") {
		b.PS = 1
	}
	if !t.flags.Changed("workers") {
		b.Workers = ranks - b.PS
	}
	if b.PS < 0 || b.Workers < 1 {
		return fmt.Errorf("--ps %d --workers %d for %d ranks (--nodes %d, --ntasks-per-node %d): at least 0 and 1 are needed", b.PS, b.Workers, ranks, b.Nodes, b.TasksPerNode)
	}
	return nil
}

// trainFlagNames are the flags of fisterra train that the script sets from those of its own.
var trainFlagNames = []string{"roles", "ps", "workers", "placement", "checkpoint", "out"}

// checkProgram finds a wrong flag before the job waits in the queue for it. args are what
// stands after --.
func (t *templateFlags) checkProgram(b *slurm.Batch, args []string) error {
	if b.Trains() {
		if b.Requeue && b.Signal != "" && b.Checkpoint == "" {
			return errors.New("--signal with --requeue needs --checkpoint: else every run begins anew, is signalled again, and the job never ends")
		}
		return checkTraining(b, args)
	}
	for _, name := range trainFlagNames {
		if t.flags.Changed(name) {
			return fmt.Errorf("--%s is for fisterra train, but the program is %s: give its own flags after --", name, b.Command[0])
		}
	}
	return nil
}

// libraryWait is Batch.Wait of training that may go over the system's MPI library, which does not say that a rank is lost.
// Without a loss all ranks end together.
const libraryWait = 120

// checkTraining makes the check that every rank would make. It leaves the data to the ranks: they need not be where
// the script is written.
func checkTraining(b *slurm.Batch, args []string) error {
	var ranks trainFlags
	env := environment{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, lookup: os.LookupEnv}
	cmd := ranks.command(env)
	if err := cmd.ParseFlags(slices.Concat(b.Command[2:], args)); errors.Is(err, pflag.ErrHelp) {
		return errors.New("after --: --help: the job would only print it: fisterra train --help prints it here")
	} else if err != nil {
		return fmt.Errorf("after --: fisterra train: %w", err)
	}
	if err := noArguments(cmd, cmd.Flags().Args()); err != nil {
		return fmt.Errorf("after --: fisterra %w", err)
	}
	if err := noEmptyFlag(cmd.Flags()); err != nil {
		return fmt.Errorf("after --: %w", err)
	}
	for _, name := range trainFlagNames {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("after --: --%s is a flag of template slurm, too, which hands it on: give it before --", name)
		}
	}
	// Ranks may go over the library where the flags leave that open and the site may start them by pmi2.
	open := ranks.transport == "auto" && ranks.infiniband != "off" && (b.MPI == "pmi2" || b.MPI == "")
	together := ranks.mode == string(ps.Sync) && ranks.aggregate == 0 // else others go on when a worker is lost
	if open && together || ranks.transport == "mpi" || ranks.infiniband == "on" {
		b.Wait = libraryWait
	}
	ranks.checkpoint = b.Checkpoint
	servers, workers, err := countsOf(b)
	if err == nil {
		err = ranks.check(workers)
	}
	if err == nil && servers == 0 && workers > 1 {
		err = ranks.checkWithoutServers()
	}
	if err == nil {
		_, err = ranks.config(env, nil)
	}
	if err == nil {
		err = ranks.checkRDMA()
	}
	if err != nil {
		return fmt.Errorf("fisterra train: %w", err)
	}
	return nil
}

// countsOf is how many ranks of a job serve and how many work.
func countsOf(b *slurm.Batch) (servers, workers int, err error) {
	switch {
	case b.Roles != nil:
		cluster, err := ps.NewCluster(b.Roles)
		return len(cluster.Servers), len(cluster.Workers), err
	case b.PS+b.Workers > 0:
		return b.PS, b.Workers, nil
	}
	return 1, max(1, b.Nodes*b.TasksPerNode-1), nil
}

func tutorialNames() []string {
	var names []string
	for _, x := range slurm.Tutorials {
		names = append(names, x.Name)
	}
	return names
}

// versionRows finds what a tutorial's version arguments stood for.
func versionRows(text string) ([]string, error) {
	tensorflow, python, _ := strings.Cut(text, ",")
	var rows []string
	for _, v := range slurm.TutorialVersions {
		if v.TensorFlow == tensorflow && v.Python == python {
			rows = append(rows, versionRow(v))
		}
	}
	if rows == nil {
		var known []string
		for _, v := range slurm.TutorialVersions {
			if args := strings.TrimSuffix(v.TensorFlow+","+v.Python, ","); !slices.Contains(known, strconv.Quote(args)) { // of the newer system, too
				known = append(known, strconv.Quote(args))
			}
		}
		return nil, fmt.Errorf("--version-args %q: the tutorials know %s", text, strings.Join(known, ", "))
	}
	return rows, nil
}

func versionRow(v slurm.TutorialVersion) string {
	row := "TensorFlow " + v.TensorFlowVersion
	if v.PythonVersion != "" {
		row += " with Python " + v.PythonVersion
	}
	if v.OldSystem {
		return row + " on the older system"
	}
	return row + " on the newer system"
}

func listTutorials(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "tutorial\tranks\tcpus\ttime\tpartition\tcommand\tabout")
	for _, x := range slurm.Tutorials {
		b := x.Batch
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\n", x.Name, b.Nodes*b.TasksPerNode, b.CPUsPerTask, b.Time, b.Partition, strings.Join(b.Command, " "), x.About)
	}
	fmt.Fprintln(w, "\nversion arguments\tstood for\t\t\t\t\t")
	for _, v := range slurm.TutorialVersions {
		args := strings.TrimSuffix(v.TensorFlow+","+v.Python, ",")
		if args == "" {
			args = "none, or others"
		}
		fmt.Fprintf(w, "%s\t%s\t\t\t\t\t\n", args, versionRow(v))
	}
	return w.Flush()
}
