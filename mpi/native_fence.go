package mpi

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi/native"
	"github.com/fisterra-hpc/fisterra/mpi/pmix"
)

// fenceOf is how ranks wait until all of them are out of MPI_Init, where the library itself does not.
//
// Open MPI 4.1 ends MPI_Init with a PMIx fence without data, which Slurm's plugin (22.05, unless SLURM_PMIX_FENCE=ring) takes
// for complete when the ranks of the own node have come. A rank that gets a message while it is still in an earlier part
// of MPI_Init calls address 0 there, since nobody has been registered to take it.
func fenceOf(library *native.Library, cfg *Config, l *origin) func(context.Context) error {
	if library.Family != native.OpenMPI || l.kind != ByPMIx || l.step == nil {
		return nil
	}
	unfenced := func(why string) {
		level := slog.LevelWarn
		if l.rank > 0 { // every rank of this library finds the same
			level = slog.LevelDebug
		}
		cfg.log().Log(context.Background(), level, "ranks cannot wait until all are out of MPI_Init: if one ends there, start with SLURM_PMIX_FENCE=ring", "because", why)
	}
	return func(ctx context.Context) error {
		path := pmix.Mapped()
		if path == "" {
			unfenced("Open MPI has a PMIx of its own, in which no other call can be made")
			return nil
		}
		client, err := pmix.Open(ctx, cfg.lookup(), pmix.Config{Library: path, Log: cfg.log()})
		if errors.Is(err, pmix.ErrVersion) {
			unfenced(err.Error())
			return nil
		}
		if err != nil {
			return err
		}
		start := time.Now()
		if err = client.Fence(ctx); err == nil {
			cfg.log().Debug("all ranks are out of MPI_Init", "waited", time.Since(start))
		}
		return errors.Join(err, client.Finalize(ctx))
	}
}
