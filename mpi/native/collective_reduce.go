package native

// Reductions and scans, of as many elements on every rank.

// Ireduce combines all ranks' send into root's recv; only root's recv is written, and
// only root may be in place.
func (c *Comm) Ireduce(r *Request, send, recv []byte, t Type, o Op, root int) error {
	b, err := c.collect(r, opIreduce, c.world.fn.ireduce, send, recv)
	if err != nil {
		return err
	}
	lengthBytes := len(send)
	if send == nil {
		lengthBytes = len(recv)
	}
	n, err := c.elements(r, t, lengthBytes)
	if err == nil {
		err = c.root(r, root)
	}
	if err == nil && c.rank == root {
		err = r.fits("recv", len(recv), lengthBytes)
	}
	if err == nil {
		err = c.reduction(r, t, o)
	}
	if err != nil {
		return err
	}
	b.A[0], b.A[1] = c.input(send), uintptr(address(recv))
	b.A[2], b.A[3], b.A[4], b.A[5] = n, uintptr(c.world.abi.types[t]), uintptr(c.world.abi.ops[o]), uintptr(root)
	return c.tail(r, &b, 6)
}

// Iallreduce combines all ranks' send into everybody's recv.
func (c *Comm) Iallreduce(r *Request, send, recv []byte, t Type, o Op) error {
	return c.prefix(r, opIallreduce, c.world.fn.iallreduce, send, recv, t, o)
}

// Iscan combines the send of ranks 0 to this one.
func (c *Comm) Iscan(r *Request, send, recv []byte, t Type, o Op) error {
	return c.prefix(r, opIscan, c.world.fn.iscan, send, recv, t, o)
}

// Iexscan combines the send of the ranks below this one; rank 0's recv is not written.
func (c *Comm) Iexscan(r *Request, send, recv []byte, t Type, o Op) error {
	return c.prefix(r, opIexscan, c.world.fn.iexscan, send, recv, t, o)
}

// IreduceScatterBlock combines all ranks' send, which holds one block per rank, and
// leaves each rank with its own block in recv.
func (c *Comm) IreduceScatterBlock(r *Request, send, recv []byte, t Type, o Op) error {
	return c.prefix(r, opIreduceScatterBlock, c.world.fn.ireduceScatterBlock, send, recv, t, o)
}

// prefix is the shape (send, recv, count, type, op, comm, request).
func (c *Comm) prefix(r *Request, op opcode, fn uintptr, send, recv []byte, t Type, o Op) error {
	b, err := c.collect(r, op, fn, send, recv)
	if err != nil {
		return err
	}
	what, input, lengthBytes, blocks := "send", send, len(recv), 1
	if op == opIreduceScatterBlock {
		blocks = c.size
	}
	if send == nil { // in place, recv holds all blocks
		what, input, lengthBytes = "recv", recv, lengthBytes/blocks
	}
	n, err := c.elements(r, t, lengthBytes)
	if err == nil {
		err = r.fits(what, len(input), lengthBytes*blocks)
	}
	if err == nil {
		err = c.reduction(r, t, o)
	}
	if err != nil {
		return err
	}
	b.A[0], b.A[1] = c.input(send), uintptr(address(recv))
	b.A[2], b.A[3], b.A[4] = n, uintptr(c.world.abi.types[t]), uintptr(c.world.abi.ops[o])
	return c.tail(r, &b, 5)
}
