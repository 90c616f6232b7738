// Command pi computes π on all ranks: each sums its share of the integral of
// 4/(1+x²), and a token visits every rank in a ring first. Start it with
//
//	fisterra run -n 4 -- go run ./examples/pi
//	srun ./pi
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
)

func main() {
	ctx := context.Background()
	world, err := mpi.Init(ctx, &mpi.Config{})
	if err != nil {
		log.Fatal(err)
	}
	c := world.Comm()
	token := []int{c.Rank()}
	next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	for range c.Size() {
		in := []int{0}
		if _, err := mpi.Sendrecv(ctx, c, token, next, 0, in, prev, 0); err != nil {
			log.Fatal(err)
		}
		token = in
	}
	const n = 1_000_000
	sum := []float64{0}
	for i := c.Rank(); i < n; i += c.Size() {
		x := (float64(i) + 0.5) / n
		sum[0] += 4 / (1 + x*x) / n
	}
	if err := collective.Allreduce(ctx, c, sum, sum, collective.Sum); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("rank %d of %d: token %d came home, pi is %.10f\n", c.Rank(), c.Size(), token[0], sum[0])
	if err := world.Close(ctx); err != nil {
		log.Fatal(err)
	}
}
