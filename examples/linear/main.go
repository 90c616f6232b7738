// Command linear fits a line with a parameter server: each worker has its own points, computes the gradient of the
// squared error on them, and pushes it; the server adds up the gradients of all and moves the line. Start it with
//
//	go build -o linear ./examples/linear
//	fisterra run -n 4 -- ./linear
//	srun -n 4 ./linear
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "linear:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	world, err := mpi.Init(ctx, &mpi.Config{})
	if err != nil {
		return err
	}
	defer world.Close(ctx)
	// Rank 0 holds the line, slope and intercept, and moves it; the others have the points.
	cfg := ps.Config{Comm: world.Comm(), Cluster: ps.Counts(1, world.Size()-1), Mode: ps.Sync,
		Tables: []ps.Table{{Name: "line", Len: 2, Type: ps.Float64}}, Rule: ps.Rule{Rate: 1}}
	if world.Rank() == 0 {
		server, err := ps.NewServer(cfg)
		if err != nil {
			return err
		}
		_, err = server.Serve(ctx) // until all workers have finished
		return err
	}
	return work(ctx, cfg, out)
}

func work(ctx context.Context, cfg ps.Config, out io.Writer) error {
	w, err := ps.NewWorker(cfg)
	if err != nil {
		return err
	}
	const points, steps = 300, 100
	line, grad := make([]float64, 2), make([]float64, 2)
	if w.Chief() {
		if _, err := ps.Set(ctx, w, "line", 0, line, 0).Wait(ctx); err != nil {
			return err
		}
	}
	_, err = ps.Pull(ctx, w, "line", line).Wait(ctx) // when the chief has set it
	for step := 0; err == nil && step < steps; step++ {
		clear(grad)
		samples := 0
		for i := w.Index(); i < points; i += len(cfg.Cluster.Workers) {
			x := 2*float64(i)/(points-1) - 1
			y := 2*x - 1 // what is to be found
			wrong := line[0]*x + line[1] - y
			grad[0], grad[1] = grad[0]+wrong*x, grad[1]+wrong
			samples++
		}
		// The sum of all gradients is divided by the number of all samples.
		_, err = ps.PushPull(ctx, w, "line", grad, line, ps.Contribution{Weight: float64(samples)}).Wait(ctx)
	}
	if err != nil {
		return err
	}
	if w.Chief() {
		fmt.Fprintf(out, "y = %.3f x %+.3f after %d steps of %d workers\n", line[0], line[1], steps, len(cfg.Cluster.Workers))
	}
	_, err = w.Finish(ctx, 0, 0)
	return err
}
