package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// Script writes the job as a bash script for sbatch, by a file or on its standard
// input. Whatever the values hold, they reach the program as they are: each is
// quoted for the shell or refused.
//
// The script keeps the shell alive while the tasks act on a signal, reports how
// they ended and exits with their code. Errors are *Error naming the option.
func (b Batch) Script() (string, error) {
	b = b.withDefaults()
	if err := b.check(); err != nil {
		return "", err
	}
	var s script
	s.line("#!/bin/bash")
	s.line(`# Written by "fisterra template slurm".`)
	s.directives(&b)
	s.line("")
	s.line(`echo "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0}, on $SLURM_JOB_NODELIST, $(date '+%F %T')"`)
	s.oneRun(&b)
	s.line("export SLURM_EXPORT_ENV=ALL # the tasks have this shell's environment, whatever sbatch --export says")
	s.modules(b.Modules)
	s.memory(&b)
	if b.Checkpoint != "" {
		s.line("")
		s.linef("mkdir -p -- %s || exit 1", b.ownPart(b.Checkpoint))
	}
	s.run(&b)
	return s.String(), nil
}

type script struct{ strings.Builder }

func (s *script) line(text string) { s.WriteString(text + "\n") }

func (s *script) linef(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// directives writes the lines that sbatch reads. It splits them at blanks and
// knows double quotes.
func (s *script) directives(b *Batch) {
	set := func(option, value string) {
		if value == "" {
			return
		}
		if strings.ContainsAny(value, " #") {
			value = `"` + value + `"`
		}
		s.linef("#SBATCH --%s=%s", option, value)
	}
	number := func(option string, n int) {
		if n > 0 {
			set(option, strconv.Itoa(n))
		}
	}
	set("job-name", b.JobName)
	number("nodes", b.Nodes)
	number("ntasks-per-node", b.TasksPerNode)
	number("cpus-per-task", b.CPUsPerTask)
	if b.MemoryPerTask > 0 {
		cpus := max(1, b.CPUsPerTask)
		number("mem-per-cpu", (b.MemoryPerTask+cpus-1)/cpus)
	}
	set("time", b.Time)
	set("partition", b.Partition)
	set("account", b.Account)
	set("constraint", b.Constraint)
	set("array", b.Array)
	set("output", b.Output)
	set("error", b.Error)
	set("open-mode", "append")
	set("signal", b.Signal)
	if b.Requeue {
		s.line("#SBATCH --requeue")
	} else {
		s.line("#SBATCH --no-requeue")
	}
	if b.NoKill {
		s.line("#SBATCH --no-kill")
	}
}

// oneRun makes the script refuse to run as an array by sbatch's own option, if the tasks of the array would share
// what belongs to one run. A task number in the environment does not suffice to tell: a job that is submitted from
// within an array has one, too.
func (s *script) oneRun(b *Batch) {
	if b.Array != "" || b.Checkpoint == "" && b.Out == "" && !b.Requeue {
		return
	}
	s.line(`if [ -n "$SLURM_ARRAY_TASK_ID" ] && scontrol show job "$SLURM_JOB_ID" | grep -q ArrayTaskId=; then`)
	s.line(`  echo "job $SLURM_JOB_ID: this script is for one run; give --array to fisterra template slurm, not to sbatch" >&2`)
	s.line("  exit 1")
	s.line("fi")
}

func (s *script) modules(modules []string) {
	if len(modules) == 0 {
		return
	}
	s.line("")
	for _, m := range modules {
		s.linef("module load %s || { echo %s >&2; exit 1; }", shellQuote(m), shellQuote("module "+m+" cannot be loaded"))
	}
}

// memory makes the script find out how much memory it may ask for per CPU.
func (s *script) memory(b *Batch) {
	if b.MemoryPerTask > 0 || b.Memory == MemorySite {
		return
	}
	s.line("")
	s.line("# Memory per CPU in MB: the job's own, else the partition's default, else the smallest even share of a node,")
	s.line("# and no more than the job holds.")
	s.line("per_cpu=$SLURM_MEM_PER_CPU")
	s.line(`if [ -z "$per_cpu" ]; then`)
	s.line(`  per_cpu=$(scontrol show partition "$SLURM_JOB_PARTITION" | sed -n 's/.*DefMemPerCPU=\([0-9][0-9]*\).*/\1/p')`)
	s.line("fi")
	s.line(`if [ -z "$per_cpu" ]; then`)
	s.line(`  per_cpu=$(sinfo -h -N -p "$SLURM_JOB_PARTITION" -n "$SLURM_JOB_NODELIST" -o '%m/%c' |`)
	s.line(`    awk -F/ '$2 > 0 { share = int($1 / $2); if (least == "" || share < least) least = share } END { print least }')`)
	s.line("fi")
	s.line(`if [ "${SLURM_MEM_PER_NODE:-0}" -gt 0 ]; then`)
	s.line("  held=$((SLURM_MEM_PER_NODE / SLURM_CPUS_ON_NODE))")
	s.line(`  if [ "${per_cpu:-$held}" -ge "$held" ]; then per_cpu=$held; fi`)
	s.line("fi")
	s.line("memory=()")
	s.line(`if [ -n "$per_cpu" ]; then`)
	s.line(`  memory=("--mem-per-cpu=$per_cpu")`)
	cpus := "${SLURM_CPUS_PER_TASK:-1}"
	if b.CPUsPerTask > 0 {
		cpus = strconv.Itoa(b.CPUsPerTask)
	}
	s.linef(`  echo "memory of a task: $((per_cpu * %s)) MB"`, cpus)
	s.line("fi")
}

func (s *script) run(b *Batch) {
	command := []string{"srun", "--kill-on-bad-exit=0", "--wait=" + strconv.Itoa(b.Wait)}
	if b.CPUsPerTask > 0 { // srun no longer takes the number from sbatch: neither this one nor, below, one that only sbatch was given
		command = append(command, "--cpus-per-task="+strconv.Itoa(b.CPUsPerTask))
	}
	if b.MPI != "" {
		command = append(command, "--mpi="+b.MPI)
	}
	if b.NoKill {
		command = append(command, "--no-kill")
	}
	for i := range command {
		command[i] = shellQuote(command[i])
	}
	if b.CPUsPerTask == 0 {
		command = append(command, `${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"}`)
	}
	if b.MemoryPerTask == 0 && b.Memory == MemoryPerCPU {
		command = append(command, `"${memory[@]}"`)
	}
	program := append([]string{}, b.Command...)
	switch {
	case b.Roles != nil:
		program = append(program, "--roles="+b.Roles.String())
	case b.PS+b.Workers > 0:
		program = append(program, "--ps="+strconv.Itoa(b.PS), "--workers="+strconv.Itoa(b.Workers))
	}
	if b.Placement != "" {
		program = append(program, "--placement="+string(b.Placement))
	}
	for _, word := range program {
		command = append(command, shellQuote(word))
	}
	if b.Checkpoint != "" {
		command = append(command, "--checkpoint="+b.ownPart(b.Checkpoint))
	}
	if b.Out != "" {
		command = append(command, "--out="+b.ownPart(b.Out))
	}
	for _, word := range b.Args {
		command = append(command, shellQuote(word))
	}
	s.line("")
	s.line("# The shell outlives a TERM, so that the tasks can save and the end is reported. A lost task")
	if b.Wait > 0 {
		s.linef("# ends the others after %d s, should they not notice it.", b.Wait)
	} else {
		s.line("# does not end the others: the program decides whether it can go on.")
	}
	s.line("trap 'echo \"job $SLURM_JOB_ID: signal TERM, $(date +%T)\"' TERM")
	s.line(strings.Join(command, " "))
	s.line("code=$?")
	s.line(`echo "job $SLURM_JOB_ID: the tasks ended with code $code, $(date '+%F %T')"`)
	if name, _, _ := strings.Cut(b.Signal, "@"); name != "" && b.Requeue {
		s.linef("if [ \"$code\" -eq $((128 + $(kill -l %s))) ]; then", signalNumber(name))
		s.line("  # Ended by the signal before the time limit: go on in another run.")
		s.linef("  scontrol requeue %s", b.itself())
		s.line("fi")
	}
	s.line(`exit "$code"`)
}

// itself names the job to scontrol, as the shell reads it. The SLURM_JOB_ID of an array's
// last task is the array's own, which stands for all of its tasks.
func (b *Batch) itself() string {
	if b.Array == "" {
		return `"$SLURM_JOB_ID"`
	}
	return `"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"`
}

// ownPart is a directory as the shell reads it. Each task of an array has its
// own below it: they run side by side.
func (b *Batch) ownPart(dir string) string {
	if b.Array == "" {
		return shellQuote(dir)
	}
	return shellQuote(dir+"/") + `"$SLURM_ARRAY_TASK_ID"`
}

// signalNumber is what kill -l translates: a name without SIG becomes a number,
// and a number is kept by asking for its name first.
func signalNumber(name string) string {
	name = strings.TrimPrefix(name, "SIG")
	if isDigit(name[0]) {
		return "$(kill -l " + name + ")"
	}
	return name
}

// shellQuote writes a word for the shell, bare where that is safe.
func shellQuote(word string) string {
	const safe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-"
	if word != "" && strings.Trim(word, safe) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
