package native

// Collectives of a block per rank, all of one length.

// Iallgather puts rank i's send into block i of everybody's recv.
func (c *Comm) Iallgather(r *Request, send, recv []byte, t Type) error {
	return c.blocks(r, opIallgather, c.world.fn.iallgather, send, recv, len(recv)/c.size, t)
}

// Ialltoall puts block j of rank i's send into block i of rank j's recv.
func (c *Comm) Ialltoall(r *Request, send, recv []byte, t Type) error {
	return c.blocks(r, opIalltoall, c.world.fn.ialltoall, send, recv, len(recv)/c.size, t)
}

// blocks is the shape (send, count, type, recv, count, type, comm, request).
func (c *Comm) blocks(r *Request, op opcode, fn uintptr, send, recv []byte, blockBytes int, t Type) error {
	b, err := c.collect(r, op, fn, send, recv)
	if err != nil {
		return err
	}
	n, err := c.elements(r, t, blockBytes)
	inputBytes := blockBytes
	if op == opIalltoall {
		inputBytes *= c.size
	}
	if err == nil {
		err = r.fits("recv", len(recv), blockBytes*c.size)
	}
	if err == nil && send != nil {
		err = r.fits("send", len(send), inputBytes)
	}
	if err != nil {
		return err
	}
	c.put(&b, 0, c.input(send), n, t)
	c.put(&b, 3, uintptr(address(recv)), n, t)
	return c.tail(r, &b, 6)
}

// Igather puts rank i's send into block i of root's recv. Root alone may be in place:
// its own block is in recv already.
func (c *Comm) Igather(r *Request, send, recv []byte, t Type, root int) error {
	blockBytes, in := len(send), uintptr(address(send))
	if c.rank == root {
		blockBytes = len(recv) / c.size
		in = c.input(send)
	}
	return c.rooted(r, opIgather, c.world.fn.igather, in, uintptr(address(recv)), send, recv, blockBytes, t, root)
}

// Iscatter puts block i of root's send into rank i's recv. A nil recv at root leaves
// its own block where it is.
func (c *Comm) Iscatter(r *Request, send, recv []byte, t Type, root int) error {
	blockBytes, out := len(recv), uintptr(address(recv))
	if c.rank == root {
		blockBytes = len(send) / c.size
		if recv == nil {
			out = c.world.abi.inPlace
		}
	}
	return c.rooted(r, opIscatter, c.world.fn.iscatter, uintptr(address(send)), out, send, recv, blockBytes, t, root)
}

// rooted is the shape (send, count, type, recv, count, type, root, comm, request).
func (c *Comm) rooted(r *Request, op opcode, fn, in, out uintptr, send, recv []byte, blockBytes int, t Type, root int) error {
	b, err := c.collect(r, op, fn, send, recv)
	if err != nil {
		return err
	}
	n, err := c.elements(r, t, blockBytes)
	if err == nil {
		err = c.root(r, root)
	}
	if err == nil && c.rank == root {
		all, one := recv, send
		if op == opIscatter {
			all, one = send, recv
		}
		if err = r.fits("root's buffer", len(all), blockBytes*c.size); err == nil && one != nil {
			err = r.fits("root's block", len(one), blockBytes)
		}
	}
	if err != nil {
		return err
	}
	c.put(&b, 0, in, n, t)
	c.put(&b, 3, out, n, t)
	b.A[6] = uintptr(root)
	return c.tail(r, &b, 7)
}
