// Command pgo merges CPU profiles of fisterra into the one by which go build compiles it
// (profile-guided optimization), and leaves out what they tell of the machine that they
// were taken on: paths, build numbers, times.
//
//	go run ./internal/pgo -o cmd/fisterra/default.pgo PROFILE...
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/google/pprof/profile"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("pgo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("o", "", "where the merged profile goes")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *out == "" || flags.NArg() == 0 {
		fmt.Fprintln(stderr, "pgo: want -o FILE and profiles to merge")
		return 2
	}
	if err := merge(*out, flags.Args()); err != nil {
		fmt.Fprintln(stderr, "pgo:", err)
		return 1
	}
	return 0
}

// merge writes the sum of the profiles, of which some may have no samples, as those of processes
// that only started others.
func merge(out string, paths []string) error {
	var all []*profile.Profile
	for _, path := range paths {
		p, err := read(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(p.Sample) > 0 {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return errors.New("no profile has any samples")
	}
	sum, err := profile.Merge(all)
	if err != nil {
		return err
	}
	anonymous(sum)
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	return errors.Join(sum.Write(f), f.Close())
}

func read(path string) (*profile.Profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return profile.Parse(f)
}

// anonymous removes what the compiler does not read: it goes by names of functions and by lines.
func anonymous(p *profile.Profile) {
	p.TimeNanos, p.DurationNanos, p.Comments = 0, 0, nil
	for _, m := range p.Mapping {
		m.File, m.BuildID = "", ""
	}
	for _, f := range p.Function {
		f.Filename = ""
	}
}
