package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/spf13/pflag"
)

// profileFlag has each rank record where its time goes.
type profileFlag struct{ path string }

func (p *profileFlag) add(f *pflag.FlagSet) {
	f.StringVar(&p.path, "cpuprofile", "", "write the CPU profile of each rank to this path with a dot and the rank (see go tool pprof)")
}

// around is main, and records it if the flag was given.
func (p profileFlag) around(main func(context.Context, *mpi.World) error) func(context.Context, *mpi.World) error {
	if p.path == "" {
		return main
	}
	return func(ctx context.Context, w *mpi.World) (err error) {
		f, err := os.Create(fmt.Sprintf("%s.%d", p.path, w.Rank()))
		if err != nil {
			return directoryError(fmt.Errorf("--cpuprofile %s: %w", p.path, err))
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return errors.Join(fmt.Errorf("--cpuprofile %s: %w", p.path, err), f.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			if closed := f.Close(); closed != nil && err == nil {
				err = fmt.Errorf("--cpuprofile %s: %w", p.path, closed)
			}
		}()
		return main(ctx, w)
	}
}
