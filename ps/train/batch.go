package train

import (
	"fmt"
	"math/rand/v2"
)

// Share cuts total into parts whose sizes differ by at most one, the larger
// ones first (50 over 3 is 17, 17, 16), and returns the bounds of part i.
func Share(total, parts, i int) (begin, end int) {
	size, more := total/parts, total%parts
	begin = i*size + min(i, more)
	end = begin + size
	if i < more {
		end++
	}
	return begin, end
}

// Batches says which rows a worker trains on in which step. It is a pure
// function of its fields: every rank, and a run that is resumed, computes the
// same.
//
// One seeded permutation of all rows is cut into joint batches, and each joint batch is divided over the workers by
// Share. The rows a worker gets that way are its shard; no row is in two shards. In every epoch the worker goes
// through its shard once, in an order drawn for that epoch, so the workers' batches of one step are as large as one
// joint batch together, and an epoch has every row once. In Async mode workers take the shards in turn instead: see
// Turn.
type Batches struct {
	Rows    int    // rows of the training set
	Batch   int    // rows of one joint batch
	Workers int    // workers that share it
	Seed    uint64 // of the permutation and the epochs' orders
}

// Validate says what is wrong with the sizes.
func (b Batches) Validate() error {
	switch {
	case b.Batch < 1:
		return fmt.Errorf("train: batch of %d rows; at least 1 is needed", b.Batch)
	case b.Workers < 1:
		return fmt.Errorf("train: %d workers; at least 1 is needed", b.Workers)
	case b.Batch < b.Workers:
		return fmt.Errorf("train: a batch of %d rows cannot be shared by %d workers; give at least %d", b.Batch, b.Workers, b.Workers)
	case b.Rows < b.Workers:
		return fmt.Errorf("train: %d rows cannot be shared by %d workers", b.Rows, b.Workers)
	}
	return nil
}

// Steps is the number of joint batches in an epoch. What is left over after
// whole batches makes a smaller one or, if some worker would get nothing of it,
// joins the last.
func (b Batches) Steps() int {
	steps := b.Rows / b.Batch
	if steps == 0 || b.Rows%b.Batch >= b.Workers {
		steps++
	}
	return steps
}

// joint is the range of rows, in the permutation, of a step's joint batch.
func (b Batches) joint(step int) (begin, end int) {
	if step == b.Steps()-1 {
		return step * b.Batch, b.Rows
	}
	return step * b.Batch, (step + 1) * b.Batch
}

// Turn is the shard that a worker goes through in an epoch where no worker waits for another: in each epoch the
// next one. If every worker kept a shard of its own, the quickest would fit the model to its rows alone, and the
// rows of a lost worker would be trained on no more.
func (b Batches) Turn(worker, epoch int) int { return (worker + epoch) % b.Workers }

// Shard lists the rows of worker i.
func (b Batches) Shard(worker int) []int {
	order := rand.New(rand.NewPCG(b.Seed, 0x5a4d)).Perm(b.Rows)
	var shard []int
	for step := range b.Steps() {
		at, end := b.joint(step)
		joint := order[at:end]
		begin, end := Share(len(joint), b.Workers, worker)
		shard = append(shard, joint[begin:end]...)
	}
	return shard
}

// Bounds is the part of the worker's shard, in the epoch's order, that belongs
// to a step of that epoch.
func (b Batches) Bounds(worker, step int) (begin, end int) {
	first, last := Share(b.Batch, b.Workers, worker)
	begin = step * (last - first)
	at, stop := b.joint(step)
	first, last = Share(stop-at, b.Workers, worker)
	return begin, begin + last - first
}

// Order is the order, as positions in the shard, in which a shard of n rows is gone through in an epoch. It is
// given by the worker whose shard it is, whoever trains on it.
func (b Batches) Order(worker, epoch, n int) []int {
	return rand.New(rand.NewPCG(b.Seed^0x0de5, uint64(worker)<<32|uint64(uint32(epoch)))).Perm(n)
}
