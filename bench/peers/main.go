// Command peers measures Fisterra beside Open MPI, MPICH and Gloo on this machine. It builds
// small programs of the project's own against each, runs all of them interleaved in several
// launches, and prints medians and ratios as a table and as JSON. README.md has the method.
//
//	go run ./bench/peers [-launches 7] [-only REGEXP] [-ranks LIST] [-max BYTES] [-json build/peers.json]
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// comparison is one run of this command.
type comparison struct {
	launches int
	budget   time.Duration
	groups   []group
	programs []*program
	sandbox  sandbox
	shuffle  *rand.Rand

	results  results
	comments map[string]string // program -> what it says of itself
	levels   map[string]string // library -> its best thread level
	foreign  []float64
	distance func() distance // of the processors now
	moves    moves
	// steadyTime is how long one program's launch may be taken again, or wait, for the processors to be as far apart as in
	// its round.
	steadyTime time.Duration
	failures   int
}

func run(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	launches := flags.Int("launches", 7, "launches of every program per group")
	budget := flags.Duration("budget", 200*time.Millisecond, "measuring time per size and launch")
	only := flags.String("only", "", "regular expression over OP/TRANSPORT/RANKS: what to measure (default all)")
	ranks := []int{2, 4}
	flags.Func("ranks", "numbers of ranks of the collectives over memory, the last also that of reduce, gather, scatter, scan (default 2,4)",
		func(text string) (err error) { ranks, err = rankCounts(text); return err })
	most := flags.Int("max", 64*mib, "largest size in bytes")
	path := flags.String("json", "build/peers.json", "where the rows go as JSON")
	binary := flags.String("fisterra", "bin/fisterra", "Fisterra's command")
	congestion := flags.String("congestion", "cubic", "tcp congestion control of all programs, or system")
	seed := flags.Uint64("seed", uint64(time.Now().UnixNano()), "order of the launches")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "peers: %q: there are flags only\n", flags.Args())
		return 2
	}
	groups, err := selected(ranks, *only, *most)
	if err == nil && (*launches < 1 || *budget <= 0) {
		err = fmt.Errorf("-launches %d -budget %v: want positive numbers", *launches, *budget)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		return 2
	}
	c := &comparison{launches: *launches, budget: *budget, groups: groups, shuffle: rand.New(rand.NewPCG(*seed, 0)),
		results: results{}, comments: map[string]string{}, levels: map[string]string{}, distance: distanceMeter(), steadyTime: 5 * time.Second}
	if c.sandbox, err = newSandbox(*congestion); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
	}
	dir, err := newBuildDir(filepath.Dir(*path))
	if err == nil {
		defer os.RemoveAll(dir)
		err = c.prepare(ctx, dir, *binary)
	}
	if err == nil {
		fmt.Printf("order of launches: seed %d\n", *seed)
		c.measure(ctx)
	} else if ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		return 69
	}
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "peers: interrupted")
		return 130
	}
	rows := c.results.rows(c.groups)
	fmt.Println()
	c.printHead()
	printTable(os.Stdout, rows)
	if err := writeJSON(*path, rows); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		return 1
	}
	fmt.Printf("\n%s: %d rows\n", *path, len(rows))
	if absent := c.results.missing(c.groups, c.programs); len(absent) > 0 || c.failures > 0 {
		fmt.Fprintf(os.Stderr, "peers: %d launches failed; no figures of: %s\n", c.failures, strings.Join(absent, ", "))
		return 1
	}
	return 0
}

// prepare builds what can be built, in dir, and picks each library's thread level.
func (c *comparison) prepare(ctx context.Context, dir, binary string) error {
	src, err := unpack(dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("no Fisterra to measure: %w (make build)", err)
	}
	binary, err = filepath.Abs(binary)
	if err != nil {
		return err
	}
	level := func(library string) string { return c.levels[library] }
	var libraries []library // that start
	for _, l := range []library{openmpi(), mpich()} {
		if c.admit(l.name, func() (*program, error) { return l.peer(src, dir, level, runtime.NumCPU()) },
			func(p *program) error { return c.pickLevel(ctx, p) }) {
			libraries = append(libraries, l)
		}
	}
	c.programs = append(c.programs, fisterra(binary, libraries, runtime.NumCPU(), c.sandbox.congestion))
	c.admit("gloo", func() (*program, error) { return gloo(src, dir) }, func(p *program) error {
		_, err := launch(ctx, p, group{"barrier", "tcp", 2, []int{0}}, c.sandbox, c.budget)
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(c.programs) == 1 {
		return fmt.Errorf("no peer to compare with")
	}
	c.groups = slices.DeleteFunc(c.groups, func(g group) bool {
		return !slices.ContainsFunc(c.programs, func(p *program) bool { return p.can(g) })
	})
	return nil
}

// admit takes a peer into the comparison if it can be built and starts, or says why not.
func (c *comparison) admit(name string, build func() (*program, error), start func(*program) error) bool {
	p, err := build()
	if err == nil {
		err = start(p)
	}
	if err != nil {
		fmt.Printf("without %s: %v\n", name, err)
		return false
	}
	c.programs = append(c.programs, p)
	return true
}

// pickLevel measures which of two thread levels serves a library best, over three launches
// each: a peer is compared at its best.
func (c *comparison) pickLevel(ctx context.Context, p *program) error {
	probe := group{"latency", "shm", 2, []int{8}}
	times := map[string][]float64{}
	at := c.distance()
	for range 3 {
		for _, level := range []string{"single", "serialized"} {
			c.levels[p.name] = level
			l, err := c.steadyLaunch(ctx, at, p, probe)
			if err != nil {
				return err
			}
			times[level] = append(times[level], l.rows[0].Median)
		}
	}
	single, serialized := slices.Sorted(slices.Values(times["single"]))[1], slices.Sorted(slices.Values(times["serialized"]))[1]
	c.levels[p.name] = "single"
	if serialized < single {
		c.levels[p.name] = "serialized"
	}
	fmt.Printf("%s: thread level %s (8 bytes in %.3f µs single, %.3f µs serialized)\n", p.name, c.levels[p.name], single, serialized)
	return nil
}

// measure runs all launches: round by round over all groups, in each the programs in a new order and, for short messages, with the
// processors as far apart as they were at its start.
func (c *comparison) measure(ctx context.Context) {
	for n := range c.launches {
		for _, g := range c.groups {
			order := slices.Clone(c.programs)
			c.shuffle.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			at := c.distance()
			c.moves.distances = append(c.moves.distances, at)
			mixedBefore, of := c.moves.mixed, round{rows: map[string][]measured{}}
			for _, p := range order {
				if !p.can(g) || ctx.Err() != nil {
					continue
				}
				l, err := c.steadyLaunch(ctx, at, p, g)
				if err != nil {
					c.failures++
					fmt.Fprintf(os.Stderr, "peers: launch %d of %s: %v\n", n+1, g.name(), err)
					continue
				}
				of.rows[p.name] = l.rows
				c.foreign = append(c.foreign, l.foreign)
				if c.comments[p.name] == "" {
					c.comments[p.name] = l.comment
				}
			}
			of.mixed = c.moves.mixed > mixedBefore
			c.results.add(g, of)
		}
		fmt.Printf("launch %d of %d done\n", n+1, c.launches)
	}
}

// printHead says what the figures were taken on.
func (c *comparison) printHead() {
	fmt.Printf("machine: %s, %d cores, %s, %s\n", cpuModel(), runtime.NumCPU(), kernel(), runtime.Version())
	for _, p := range c.programs {
		if said := c.comments[p.name]; said != "" {
			fmt.Printf("%s: %s\n", p.name, said)
		}
	}
	fmt.Printf("tcp: congestion control %s for all programs\n", c.sandbox.congestion)
	fmt.Printf("more ranks than cores: Open MPI with --oversubscribe and mpi_yield_when_idle, MPICH with MPIR_CVAR_POLLS_BEFORE_YIELD=10\n")
	fmt.Println(&c.moves)
	if n := len(c.foreign); n > 0 {
		slices.Sort(c.foreign)
		fmt.Printf("other processes used %.2f cores (median over launches; 90 %%: %.2f)\n", c.foreign[n/2], c.foreign[n*9/10])
	}
	fmt.Println()
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return "Linux " + strings.TrimSpace(string(text))
}
