package native

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/lab"
	"github.com/fisterra-hpc/fisterra/internal/procmem"
)

// Whatever the lengths of message and buffer are: bytes, status and order are MPI's,
// and nothing behind the buffer is written.
func TestMessagesOfAllLengthsAreSafe(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		l.ranks(t, 3, "lengths")
		if l.Part == "openmpi" {
			l.ranks(t, 3, "lengths", "OMPI_MCA_btl=tcp,self")
			l.ranks(t, 3, "lengths", lab.ThroughUCX()...)
		}
	})
}

// lengths about those at which something changes.
var lengths = []int{0, 1, 8, noticeBytes - 1, noticeBytes, noticeBytes + 1, stagedBytes, stagedBytes + 1, 100, 1000,
	shortBytes, shortBytes + 1, 4096, 5000, 70_000, 300_000}

func allLengths(ctx context.Context, w *World) error {
	c := w.comm
	turned := []int{2, 0, 1}
	group, err := w.CreateGroup(ctx, "turned", turned, 5)
	if err != nil {
		return err
	}
	for _, c := range []*Comm{c, group} {
		for _, peer := range []int{(c.rank + 1) % 3, c.rank} {
			if err := intoBuffers(ctx, c, peer, (2*c.rank-peer+3)%3); err != nil {
				return fmt.Errorf("%s, to %d: %w", c.name, peer, err)
			}
			if err := inOrder(ctx, c, peer, (2*c.rank-peer+3)%3); err != nil {
				return fmt.Errorf("%s, in order, to %d: %w", c.name, peer, err)
			}
			if err := overtaking(ctx, c, peer, (2*c.rank-peer+3)%3); err != nil {
				return fmt.Errorf("%s, past probes, to %d: %w", c.name, peer, err)
			}
		}
		if err := crossing(ctx, c); err != nil {
			return err
		}
	}
	if w.announces {
		if err := pulling(ctx, w); err != nil {
			return fmt.Errorf("pulling: %w", err)
		}
	}
	var r Request
	if err := c.Irecv(&r, make([]byte, 8), AnySource, 10); err != nil {
		return err
	}
	if w.Called() == w.announces {
		return errors.New("a message may be announced: progress is left to the program's calls")
	}
	if err := r.Cancel(); err != nil {
		return err
	}
	if _, err := w.Wait(ctx, &r); !errors.Is(err, ErrCancelled) {
		return fmt.Errorf("cancelled: %w", err)
	}
	if !w.Called() {
		return errors.New("the calls have not been noticed")
	}
	if w.Progress(); w.Called() {
		return errors.New("Progress counts as a call of the program")
	}
	for len(w.notifying) > 0 && ctx.Err() == nil { // acknowledgements are not waited for
		w.Progress()
	}
	if n := len(w.notifying); n > 0 || w.announces && w.announcements == 0 {
		return fmt.Errorf("%d announcements, %d still on their way", w.announcements, n)
	}
	return nil
}

// pulling: the same with ranks that read each other's memory, as all of a host can that may trace each other.
func pulling(ctx context.Context, w *World) error {
	c := w.comm
	number := &make([]uint64, 1<<16)[0] // too much for a stack, which may move
	defer runtime.KeepAlive(number)
	own, err := binary.Append(nil, binary.NativeEndian, procmem.Introduce(number))
	if err != nil {
		return err
	}
	const any = ^uintptr(0)
	_ = unix.Prctl(unix.PR_SET_PTRACER, any, 0, 0, 0) // where only parents may
	cards, found := make([]byte, c.size*len(own)), make([]byte, c.size)
	var r Request
	if err := c.Iallgather(&r, own, cards, Byte); err != nil {
		return err
	}
	if _, err := w.Wait(ctx, &r); err != nil {
		return err
	}
	processes, readers := make([]int, c.size), make([]bool, c.size)
	reads := byte(1)
	for i := range c.size {
		var intro procmem.Introduction
		if _, err := binary.Decode(cards[i*len(own):], binary.NativeEndian, &intro); err != nil {
			return err
		}
		if processes[i], readers[i] = int(intro.Process), i != c.rank; !intro.Proved() {
			reads = 0
		}
	}
	if err := c.Iallgather(&r, []byte{reads}, found, Byte); err != nil {
		return err
	}
	if _, err := w.Wait(ctx, &r); err != nil || slices.Contains(found, 0) {
		return err
	}
	w.ReadFrom(processes, readers)
	if err := c.Ibarrier(&r); err != nil {
		return err
	}
	if _, err := w.Wait(ctx, &r); err != nil {
		return err
	}
	to, from := (c.rank+1)%3, (c.rank+2)%3
	return errors.Join(intoBuffers(ctx, c, to, from), inOrder(ctx, c, to, from), overtaking(ctx, c, to, from), crossing(ctx, c))
}

// intoBuffers sends each length and receives it into buffers of each.
func intoBuffers(ctx context.Context, c *Comm, to, from int) error {
	const guard = 64
	w := c.world
	for _, n := range lengths {
		for _, room := range lengths {
			if n > 5000 && room > 5000 && n != room {
				continue
			}
			var send, recv Request
			buf := make([]byte, room+guard)
			start := func() error { return c.Isend(&send, fill(n, c.rank, room), to, 3) }
			// The receive is there before the message, or after it, and sometimes blocks.
			early := room%2 == 0
			if early {
				if err := c.Irecv(&recv, buf[:room], from, 3); err != nil {
					return err
				}
			}
			if err := start(); err != nil {
				return err
			}
			var s Status
			var err error
			if early {
				s, err = w.Wait(ctx, &recv)
			} else {
				s, err = c.Recv(ctx, buf[:room], from, AnyTag)
			}
			_, sent := w.Wait(ctx, &send)
			want := Status{Source: from, Tag: 3, Bytes: n}
			what := fmt.Sprintf("%d B into %d", n, room)
			switch {
			case sent != nil:
				return fmt.Errorf("%s: sending: %w", what, sent)
			case !bytes.Equal(buf[room:], make([]byte, guard)):
				return fmt.Errorf("%s: written behind the buffer", what)
			case n < room && !bytes.Equal(buf[n:room], make([]byte, room-n)):
				return fmt.Errorf("%s: written behind the message", what)
			case w.pulls(n, from) && recv.bytes > room: // what is said of the buffer to the race detector and to caches
				return fmt.Errorf("%s: a buffer of %d", what, recv.bytes)
			case n > room && !errors.Is(err, ErrTruncated):
				return fmt.Errorf("%s: %w, want ErrTruncated", what, err)
			case n > room && !w.announces:
				continue // neither length nor beginning are promised
			case n <= room && err != nil, s != want:
				return fmt.Errorf("%s: %+v, %w", what, s, err)
			case !bytes.Equal(buf[:min(n, room)], fill(n, from, room)[:min(n, room)]):
				return fmt.Errorf("%s: wrong bytes", what)
			}
		}
	}
	return nil
}

// inOrder: messages of one tag come in the order in which they were sent, however long
// they are, and also when probes have met them.
func inOrder(ctx context.Context, c *Comm, to, from int) error {
	w := c.world
	order := []int{70_000, 8, noticeBytes, 5000, 0, 70_000, 1, 4096, noticeBytes, 9}
	for round := range 4 {
		var sends []*Request
		for i, n := range order {
			r := new(Request)
			if err := c.Isend(r, fill(n, c.rank, i), to, 6); err != nil {
				return err
			}
			sends = append(sends, r)
		}
		for i, n := range order {
			buf := make([]byte, 100_000)
			want := Status{Source: from, Tag: 6, Bytes: n}
			var r Request
			var s Status
			var err error
			for probe := range (round + i) % 3 { // none, one, two that see the same
				if err = c.Probe(&r, []int{from, AnySource}[probe], 6); err == nil {
					s, err = w.Wait(ctx, &r)
				}
				if err != nil || s != want {
					return fmt.Errorf("probe of message %d: %+v, want %+v, %w", i, s, want, err)
				}
			}
			if round%2 == 0 {
				s, err = c.Recv(ctx, buf, from, AnyTag)
			} else if err = c.Irecv(&r, buf, AnySource, 6); err == nil {
				s, err = w.Wait(ctx, &r)
			}
			if err != nil || s != want || !bytes.Equal(buf[:n], fill(n, from, i)) {
				return fmt.Errorf("round %d, message %d: %+v, want %+v, %w", round, i, s, want, err)
			}
		}
		for _, r := range sends {
			if _, err := w.Wait(ctx, r); err != nil {
				return err
			}
		}
	}
	if slices.Max(order) > shortBytes && len(c.met) > 0 {
		return fmt.Errorf("%d messages that probes have met were not received", len(c.met))
	}
	return nil
}

// overtaking: probes by tag find messages in any order, receives by any tag get them in the order in which they
// were sent.
func overtaking(ctx context.Context, c *Comm, to, from int) error {
	w := c.world
	order := []int{8, 70_000, noticeBytes, 0, 1000, 5000} // by tag
	for _, probed := range [][]int{{1}, {5, 1}, {1, 0}, {2, 3}, {5, 4, 3, 2, 1, 0}} {
		var sends []*Request
		for tag, n := range order {
			r := new(Request)
			if err := c.Isend(r, fill(n, c.rank, tag), to, tag); err != nil {
				return err
			}
			sends = append(sends, r)
		}
		for _, tag := range probed {
			var r Request
			err := c.Probe(&r, from, tag)
			var s Status
			if err == nil {
				s, err = w.Wait(ctx, &r)
			}
			if want := (Status{Source: from, Tag: tag, Bytes: order[tag]}); err != nil || s != want {
				return fmt.Errorf("probes %v: %+v, want %+v, %w", probed, s, want, err)
			}
		}
		for tag, n := range order {
			buf, room := make([]byte, 100_000), 100_000
			if tag == probed[0]-1 { // too short
				room = n / 2
			}
			var r Request
			err := c.Irecv(&r, buf[:room], from, AnyTag)
			var s Status
			if err == nil {
				s, err = w.Wait(ctx, &r)
			}
			what := fmt.Sprintf("probes %v, message %d", probed, tag)
			switch want := (Status{Source: from, Tag: tag, Bytes: n}); {
			case n > room && !errors.Is(err, ErrTruncated):
				return fmt.Errorf("%s: %w, want ErrTruncated", what, err)
			case n > room && !w.announces:
				continue // neither length nor beginning are promised
			case n <= room && err != nil, s != want, !bytes.Equal(buf[:min(n, room)], fill(n, from, tag)[:min(n, room)]):
				return fmt.Errorf("%s: %+v, want %+v, %w", what, s, want, err)
			case !bytes.Equal(buf[room:], make([]byte, len(buf)-room)):
				return fmt.Errorf("%s: written behind the buffer", what)
			}
		}
		for _, r := range sends {
			if _, err := w.Wait(ctx, r); err != nil {
				return err
			}
		}
	}
	if len(c.met) > 0 {
		return fmt.Errorf("%d messages that probes have met were not received", len(c.met))
	}
	return nil
}

// crossing: all ranks first wait for their own long send, with the receive for the
// other's posted that nobody waits for yet.
func crossing(ctx context.Context, c *Comm) error {
	w := c.world
	to, from := (c.rank+1)%c.size, (c.rank+c.size-1)%c.size
	buf := make([]byte, 200_000)
	for i := range 200 {
		var recv Request
		if err := c.Irecv(&recv, buf, from, 8); err != nil {
			return err
		}
		if err := c.Send(ctx, fill(100_000+i, c.rank, i), to, 8); err != nil {
			return err
		}
		if s, err := w.Wait(ctx, &recv); err != nil || s.Bytes != 100_000+i || !bytes.Equal(buf[:s.Bytes], fill(s.Bytes, from, i)) {
			return fmt.Errorf("crossing %d: %+v, %w", i, s, err)
		}
	}
	// A receive that is cancelled after its message was announced completes.
	var recv, send Request
	if err := c.Irecv(&recv, buf, from, 9); err != nil {
		return err
	}
	if err := c.Isend(&send, fill(50_000, c.rank, 0), to, 9); err != nil {
		return err
	}
	if err := recv.Cancel(); err != nil {
		return err
	}
	if s, err := w.Wait(ctx, &recv); errors.Is(err, ErrCancelled) {
		if s, err = c.Recv(ctx, buf, from, 9); err != nil || s.Bytes != 50_000 {
			return fmt.Errorf("after a cancelled receive: %+v, %w", s, err)
		}
	} else if err != nil || s.Bytes != 50_000 {
		return fmt.Errorf("cancelled too late: %+v, %w", s, err)
	}
	_, err := w.Wait(ctx, &send)
	return err
}
