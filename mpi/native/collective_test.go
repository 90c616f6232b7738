package native

import (
	"context"
	"fmt"
	"slices"
	"unsafe"
)

func bytesOf[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

func fold[T int32 | float64](o Op, a, b T) T {
	switch o {
	case Sum:
		return a + b
	case Prod:
		return a * b
	case Min:
		return min(a, b)
	}
	return max(a, b)
}

// value is what rank r contributes at index i: small integers, so that floating point
// is exact in any order.
func value[T int32 | float64](r, i int) T { return T((r + 1) * (i%5 + 1) % 7) }

func collectives(ctx context.Context, w *World) error {
	for _, n := range []int{1, 7, 3000} {
		if err := reductions[int32](ctx, w, Int32, n); err != nil {
			return fmt.Errorf("int32, %d elements: %w", n, err)
		}
		if err := reductions[float64](ctx, w, Float64, n); err != nil {
			return fmt.Errorf("float64, %d elements: %w", n, err)
		}
		if err := exchanges(ctx, w, n); err != nil {
			return fmt.Errorf("%d elements: %w", n, err)
		}
	}
	return everyType(ctx, w)
}

func reductions[T int32 | float64](ctx context.Context, w *World, t Type, n int) error {
	c := w.comm
	p := c.size
	mine := make([]T, n*p)
	for i := range mine {
		mine[i] = value[T](c.rank, i)
	}
	var r Request
	for _, o := range []Op{Sum, Prod, Min, Max} {
		// want[i] over ranks first..last
		over := func(first, last, i int) T {
			x := value[T](first, i)
			for q := first + 1; q <= last; q++ {
				x = fold(o, x, value[T](q, i))
			}
			return x
		}
		all := make([]T, n*p)
		for i := range all {
			all[i] = over(0, p-1, i)
		}
		recv := make([]T, n*p)
		counts := make([]int, p)
		for i := range counts {
			counts[i] = n
		}
		inPlace := slices.Clone(mine)
		for _, step := range []struct {
			name  string
			start func() error
			got   []T
			want  []T
		}{
			{"Iallreduce", func() error { return c.Iallreduce(&r, bytesOf(mine), bytesOf(recv), t, o) }, recv, all},
			{"Iallreduce in place", func() error { return c.Iallreduce(&r, nil, bytesOf(inPlace), t, o) }, inPlace, all},
			{"Ireduce_scatter_block", func() error { return c.IreduceScatterBlock(&r, bytesOf(mine), bytesOf(recv[:n]), t, o) }, recv[:n], all[c.rank*n : (c.rank+1)*n]},
			{"Ireduce_scatter", func() error { return c.IreduceScatter(&r, bytesOf(mine), bytesOf(recv[:n]), counts, t, o) }, recv[:n], all[c.rank*n : (c.rank+1)*n]},
		} {
			if err := finish(ctx, w, &r, step.start()); err != nil {
				return err
			}
			if !slices.Equal(step.got, step.want) {
				return fmt.Errorf("%s of %v is wrong", step.name, o)
			}
		}
		for root := range p {
			if err := finish(ctx, w, &r, c.Ireduce(&r, bytesOf(mine), bytesOf(recv), t, o, root)); err != nil {
				return err
			}
			if c.rank == root && !slices.Equal(recv, all) {
				return fmt.Errorf("Ireduce of %v to %d is wrong", o, root)
			}
		}
		if err := finish(ctx, w, &r, c.Iscan(&r, bytesOf(mine), bytesOf(recv), t, o)); err != nil {
			return err
		}
		for i, x := range recv {
			if x != over(0, c.rank, i) {
				return fmt.Errorf("Iscan of %v is wrong at %d", o, i)
			}
		}
		if err := finish(ctx, w, &r, c.Iexscan(&r, bytesOf(mine), bytesOf(recv), t, o)); err != nil {
			return err
		}
		for i, x := range recv {
			if c.rank > 0 && x != over(0, c.rank-1, i) {
				return fmt.Errorf("Iexscan of %v is wrong at %d", o, i)
			}
		}
	}
	return nil
}

func finish(ctx context.Context, w *World, r *Request, started error) error {
	if started != nil {
		return started
	}
	_, err := w.Wait(ctx, r)
	return err
}

// exchanges moves blocks without arithmetic; block i of rank r holds r·1000+i.
func exchanges(ctx context.Context, w *World, n int) error {
	c := w.comm
	p := c.size
	block := func(from, to, n int) []int32 {
		b := make([]int32, n)
		for i := range b {
			b[i] = int32(from*1000000 + to*10000 + i)
		}
		return b
	}
	join := func(f func(q int) []int32) []int32 {
		var all []int32
		for q := range p {
			all = append(all, f(q)...)
		}
		return all
	}
	length := func(q int) int { return n * (q % 3) } // uneven, some empty
	counts := make([]int, p)
	total := 0
	for q := range counts {
		counts[q] = length(q)
		total += counts[q]
	}
	var r Request
	check := func(name string, started error, got, want []int32) error {
		if err := finish(ctx, w, &r, started); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s is wrong", name)
		}
		return nil
	}
	nonNil := func(b []byte) []byte {
		if b == nil {
			return []byte{}
		}
		return b
	}
	if err := finish(ctx, w, &r, c.Ibarrier(&r)); err != nil {
		return err
	}
	mine := block(c.rank, 0, n)
	recv := make([]int32, n*p)
	if err := check("Iallgather", c.Iallgather(&r, bytesOf(mine), bytesOf(recv), Int32), recv, join(func(q int) []int32 { return block(q, 0, n) })); err != nil {
		return err
	}
	send := join(func(q int) []int32 { return block(c.rank, q, n) })
	clear(recv)
	if err := check("Ialltoall", c.Ialltoall(&r, bytesOf(send), bytesOf(recv), Int32), recv, join(func(q int) []int32 { return block(q, c.rank, n) })); err != nil {
		return err
	}
	uneven := make([]int32, total)
	mineUneven := block(c.rank, 0, length(c.rank))
	want := join(func(q int) []int32 { return block(q, 0, length(q)) })
	if err := check("Iallgatherv", c.Iallgatherv(&r, nonNil(bytesOf(mineUneven)), bytesOf(uneven), counts, Int32), uneven, want); err != nil {
		return err
	}
	// alltoallv: rank s sends length(d) elements to d.
	sendv := join(func(q int) []int32 { return block(c.rank, q, length(q)) })
	same := make([]int, p)
	for q := range same {
		same[q] = length(c.rank)
	}
	recvv := make([]int32, p*length(c.rank))
	if err := check("Ialltoallv", c.Ialltoallv(&r, bytesOf(sendv), bytesOf(recvv), counts, same, Int32), recvv,
		join(func(q int) []int32 { return block(q, c.rank, length(c.rank)) })); err != nil {
		return err
	}
	for root := range p {
		buf := block(root, 7, n)
		if c.rank != root {
			clear(buf)
		}
		if err := check("Ibcast", c.Ibcast(&r, bytesOf(buf), Int32, root), buf, block(root, 7, n)); err != nil {
			return err
		}
		// At root: everything; elsewhere what was there before.
		atRoot := func(want []int32) ([]int32, []int32) {
			if c.rank == root {
				return make([]int32, len(want)), want
			}
			return nil, nil
		}
		got, want := atRoot(join(func(q int) []int32 { return block(q, 0, n) }))
		if err := check("Igather", c.Igather(&r, bytesOf(mine), bytesOf(got), Int32, root), got, want); err != nil {
			return err
		}
		got, want = atRoot(join(func(q int) []int32 { return block(q, 0, length(q)) }))
		if err := check("Igatherv", c.Igatherv(&r, nonNil(bytesOf(mineUneven)), bytesOf(got), counts, Int32, root), got, want); err != nil {
			return err
		}
		all := join(func(q int) []int32 { return block(root, q, n) })
		one := make([]int32, n)
		if err := check("Iscatter", c.Iscatter(&r, bytesOf(all), bytesOf(one), Int32, root), one, block(root, c.rank, n)); err != nil {
			return err
		}
		all = join(func(q int) []int32 { return block(root, q, length(q)) })
		one = make([]int32, length(c.rank))
		if err := check("Iscatterv", c.Iscatterv(&r, bytesOf(all), nonNil(bytesOf(one)), counts, Int32, root), one, block(root, c.rank, length(c.rank))); err != nil {
			return err
		}
	}
	return nil
}

// everyType adds up one element of each type and, where MPI has them, folds the others,
// against what the operation must give for equal contributions.
func everyType(ctx context.Context, w *World) error {
	c := w.comm
	var r Request
	for t := Byte; t < types; t++ {
		for o := Sum; o < ops; o++ {
			buf := make([]byte, t.Bytes())
			if !Reducible(t, o) {
				continue
			}
			// All-zero bytes are zero in every type, and zero is a fixed point of all operations.
			if err := finish(ctx, w, &r, c.Iallreduce(&r, nil, buf, t, o)); err != nil {
				return fmt.Errorf("%v of %v: %w", o, t, err)
			}
			for _, b := range buf {
				if b != 0 {
					return fmt.Errorf("%v of zeros of type %v is %v", o, t, buf)
				}
			}
		}
	}
	// A type of the wrong width or kind would carry or add differently.
	p := c.size
	sums := map[Type]struct{ one, want []byte }{
		Int8:       {bytesOf([]int8{-3}), bytesOf([]int8{int8(-3 * p)})},
		Int16:      {bytesOf([]int16{-300}), bytesOf([]int16{int16(-300 * p)})},
		Int64:      {bytesOf([]int64{-1 << 40}), bytesOf([]int64{int64(-p) << 40})},
		Uint8:      {bytesOf([]uint8{3}), bytesOf([]uint8{uint8(3 * p)})},
		Uint16:     {bytesOf([]uint16{300}), bytesOf([]uint16{uint16(300 * p)})},
		Uint32:     {bytesOf([]uint32{1 << 20}), bytesOf([]uint32{uint32(p) << 20})},
		Uint64:     {bytesOf([]uint64{1 << 40}), bytesOf([]uint64{uint64(p) << 40})},
		Float32:    {bytesOf([]float32{1.5}), bytesOf([]float32{1.5 * float32(p)})},
		Complex64:  {bytesOf([]complex64{1 + 2i}), bytesOf([]complex64{complex(float32(p), float32(2*p))})},
		Complex128: {bytesOf([]complex128{1 + 2i}), bytesOf([]complex128{complex(float64(p), float64(2*p))})},
	}
	for t := Int8; t < types; t++ {
		s, ok := sums[t]
		if !ok {
			continue
		}
		got := slices.Clone(s.one)
		if err := finish(ctx, w, &r, c.Iallreduce(&r, nil, got, t, Sum)); err != nil {
			return err
		}
		if !slices.Equal(got, s.want) {
			return fmt.Errorf("sum of %v: %v, want %v", t, got, s.want)
		}
	}
	bits := []byte{byte(1 << (c.rank % 8))}
	want := byte(0)
	for q := range p {
		want |= 1 << (q % 8)
	}
	if err := finish(ctx, w, &r, c.Iallreduce(&r, nil, bits, Byte, BitOr)); err != nil || bits[0] != want {
		return fmt.Errorf("bitor: %v, want %v: %v", bits[0], want, err)
	}
	return nil
}
