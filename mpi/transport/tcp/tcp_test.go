package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

func TestMessagesInOrder(t *testing.T) {
	ranks := openRanks(t, 2)
	sizes := []int{0, 1, 8, inlineBytes, inlineBytes + 1, stagingBytes, EagerBytes - 1, EagerBytes, 3, 0}
	h := func(i int) transport.Header {
		return transport.Header{Kind: transport.Kind(2 + i%5), Context: uint32(i), Tag: int32(-i), Bytes: uint64(i * 7), Token: uint64(i % 3), Aux: uint64(i%2) << 63}
	}
	for i, n := range sizes {
		send(t, ranks, 0, 1, h(i), pattern(n, byte(i)))
	}
	pump(t, ranks, "arrival", func() bool { return len(ranks[1].messages) == len(sizes) })
	for i, m := range ranks[1].messages {
		if m.peer != 0 || m.h != h(i) || !bytes.Equal(m.payload, pattern(sizes[i], byte(i))) {
			t.Errorf("message %d: from %d, header %+v, want %+v, %d bytes, want %d", i, m.peer, m.h, h(i), len(m.payload), sizes[i])
		}
	}
}

// Long messages that the engine claims go where it says, piece by piece as they come, and the others are put together.
func TestClaimed(t *testing.T) {
	const claimed, unclaimed, discarded = 1, 2, 3
	for _, n := range []int{100, claimBytes - 1, claimBytes, claimBytes + 1, 3*tailBytes + claimBytes, EagerBytes - 1, EagerBytes} {
		for _, window := range []int{0, 1000} {
			ranks := connected(t, 2)
			r := ranks[0]
			r.messages = nil
			r.window = window
			src, dst, part := pattern(n, 9), make([]byte, n), make([]byte, n/2)
			r.claims = map[int32]uint64{claimed: 7, discarded: 8}
			r.dst[7], r.dst[8] = dst, part
			for tag := int32(1); tag <= 3; tag++ {
				send(t, ranks, 1, 0, transport.Header{Kind: 5, Tag: tag, Bytes: uint64(n)}, src)
				send(t, ranks, 1, 0, transport.Header{Kind: 5, Tag: 9}, []byte("after"))
			}
			afters := func() (n int) {
				for _, m := range r.messages {
					if string(m.payload) == "after" {
						n++
					}
				}
				return n
			}
			pump(t, ranks, "all", func() bool { return afters() == 3 })
			whole := map[int32]int{}
			for _, m := range r.messages {
				if m.h.Tag != 9 {
					if whole[m.h.Tag]++; !bytes.Equal(m.payload, src) {
						t.Errorf("%d bytes with tag %d: others", n, m.h.Tag)
					}
				}
			}
			if long := n >= claimBytes; len(r.placed) > 0 != long || long != (whole[claimed] == 0) || whole[unclaimed] != 1 || long != (whole[discarded] == 0) {
				t.Errorf("%d bytes: %d placed, whole by tag %v", n, len(r.placed), whole)
			} else if long && (!bytes.Equal(dst, src) || !bytes.Equal(part, src[:n/2]) || len(r.placed) != 1 || r.placed[0].Token != 7) {
				t.Errorf("%d bytes, %d at a time: not what was sent, or placed %v", n, window, r.placed)
			}
		}
	}
}

func TestData(t *testing.T) {
	for _, n := range []int{0, 1, 100, chunkBytes - 1, chunkBytes, chunkBytes + 1, 3*chunkBytes + 17} {
		for _, window := range []int{0, 1000, chunkBytes - 3} {
			if window > 0 && n > window*2000 {
				continue
			}
			t.Run(fmt.Sprintf("%d window %d", n, window), func(t *testing.T) {
				ranks := openRanks(t, 2)
				src, dst := pattern(n, 9), make([]byte, n)
				ranks[1].dst[77] = dst
				ranks[1].window = window
				send(t, ranks, 0, 1, transport.Header{Kind: 5, Tag: 1}, []byte("before"))
				sendFrom(t, ranks, 0, 1, transport.Header{Kind: transport.Data, Token: 77, Bytes: uint64(n)}, src, 4)
				send(t, ranks, 0, 1, transport.Header{Kind: 5, Tag: 2}, []byte("after"))
				pump(t, ranks, "data", func() bool { return len(ranks[1].messages) == 2 && len(ranks[0].completed) == 1 })
				if err, ok := ranks[0].completed[4]; !ok || err != nil {
					t.Fatalf("completion: %v, %v", ok, err)
				}
				if len(ranks[1].placed) != 1 || ranks[1].placed[0].Token != 77 || !bytes.Equal(dst, src) {
					t.Fatalf("placed %v, equal %v", ranks[1].placed, bytes.Equal(dst, src))
				}
				if n > 0 && ranks[1].asked == 0 {
					t.Fatal("the engine was not asked for memory")
				}
			})
		}
	}
}

// The receiver gives up in the middle: the rest is thrown away and the stream goes on.
func TestDataDiscarded(t *testing.T) {
	ranks := openRanks(t, 2)
	const n = 2*chunkBytes + 5
	dst := make([]byte, 1000) // Place has no memory for the rest
	ranks[1].dst[1] = dst
	src := pattern(n, 1)
	sendFrom(t, ranks, 0, 1, transport.Header{Kind: transport.Data, Token: 1, Bytes: n}, src, 1)
	sendFrom(t, ranks, 0, 1, transport.Header{Kind: transport.Data, Token: 2, Bytes: n}, src, 2) // no memory at all
	send(t, ranks, 0, 1, transport.Header{Kind: 5}, []byte("after"))
	pump(t, ranks, "the message after", func() bool { return len(ranks[1].messages) == 1 })
	if !bytes.Equal(dst, src[:1000]) || string(ranks[1].messages[0].payload) != "after" {
		t.Fatal("wrong bytes")
	}
}

// A receiver that does not poll: the sender gets Full after a bounded number of bytes,
// and everything that was taken arrives in order once it polls.
func TestBackPressure(t *testing.T) {
	ranks := openRanks(t, 2)
	send(t, ranks, 0, 1, transport.Header{Kind: 5}, nil)
	pump(t, ranks, "connection", func() bool { return len(ranks[1].messages) == 1 })
	payload := pattern(10000, 1)
	sent, h := 0, transport.Header{Kind: 5, Bytes: 10000}
	for {
		h.Token = uint64(sent)
		o := ranks[0].Send(1, &h, payload)
		if o == transport.Full {
			break
		}
		if o != transport.Sent || sent > 100000 {
			t.Fatalf("after %d messages: %v", sent, o)
		}
		sent++
	}
	if c := ranks[0].links[1].conn; !c.blocked || ranks[0].Arm() || c.watched != unix.EPOLLIN|unix.EPOLLOUT {
		t.Fatalf("blocked %v, and watched for %#x", c.blocked, c.watched)
	}
	ranks[0].Disarm()
	pump(t, ranks, "everything", func() bool { return len(ranks[1].messages) == 1+sent })
	for i, m := range ranks[1].messages[1:] {
		if m.h.Token != uint64(i) || !bytes.Equal(m.payload, payload) {
			t.Fatalf("message %d has token %d", i, m.h.Token)
		}
	}
	if c := ranks[0].links[1].conn; c.blocked || c.out.stage != nil || ranks[0].blocked != 0 {
		t.Fatal("the drained connection still holds its stage")
	}
	t.Logf("Full after %d messages of 10000 bytes", sent)
}

func TestAbandon(t *testing.T) {
	for _, blocked := range []bool{false, true} {
		t.Run(fmt.Sprintf("queued behind another: %v", blocked), func(t *testing.T) {
			ranks := openRanks(t, 2)
			send(t, ranks, 0, 1, transport.Header{Kind: 5}, nil)
			pump(t, ranks, "connection", func() bool { return len(ranks[1].messages) == 1 })
			const n = 64 << 20 // more than any kernel's buffers
			src, dst := pattern(n, 1), make([]byte, n)
			ranks[1].dst[1], ranks[1].dst[2] = dst, dst
			op := uint64(1)
			if blocked {
				op = 2
				ranks[0].SendFrom(1, &transport.Header{Kind: transport.Data, Token: 1, Bytes: n}, src, 1)
			}
			if o := ranks[0].SendFrom(1, &transport.Header{Kind: transport.Data, Token: op, Bytes: n}, src, op); o != transport.Sent {
				t.Fatal(o)
			}
			ranks[0].Abandon(op)
			ranks[0].Poll(ranks[0])
			if err := ranks[0].completed[op]; !errors.Is(err, errAbandoned) {
				t.Fatalf("completion of an abandoned send: %v", err)
			}
			if !blocked {
				clear(src) // the memory is the caller's again
			}
			send(t, ranks, 0, 1, transport.Header{Kind: 5}, []byte("after"))
			pump(t, ranks, "the message after", func() bool { return len(ranks[1].messages) == 2 })
			if want := map[bool]int{false: 0, true: 1}[blocked]; len(ranks[1].placed) != want {
				t.Fatalf("%d messages placed, want %d", len(ranks[1].placed), want)
			}
			whole := pattern(n, 1)
			for i := range dst {
				if dst[i] != 0 && dst[i] != whole[i] {
					t.Fatalf("byte %d was written after the memory was given back", i)
				}
			}
		})
	}
}

// An authenticated peer that sends nonsense is lost; nothing panics or grows.
func TestMalformedStream(t *testing.T) {
	valid := func(h transport.Header, payload uint64) []byte {
		b := make([]byte, maxHeadBytes)
		return b[:packHeader(b, &h, payload)]
	}
	word := func(n uint32) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, n), make([]byte, wordBytes-4)...)
	}
	for name, raw := range map[string][]byte{
		"garbage":       bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 10),
		"flags":         {0xf1, 0, 2, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"padding":       {0xf1, 64, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"eager too big": valid(transport.Header{Kind: 2}, 1<<40),
		"data too big":  valid(transport.Header{Kind: transport.Data}, 1<<63),
		"chunk too big": append(valid(transport.Header{Kind: transport.Data, Token: 1}, 1<<40), word(1<<31)...),
		"chunk beyond":  append(valid(transport.Header{Kind: transport.Data, Token: 1}, 10), word(11)...),
	} {
		t.Run(name, func(t *testing.T) {
			ranks := connected(t, 2)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			unix.Write(ranks[0].conns[0].fd, raw)
			pump(t, ranks[1:], "loss", func() bool { return ranks[1].lost[0] != nil })
			runtime.ReadMemStats(&after)
			if !strings.Contains(ranks[1].lost[0].Error(), "malformed") {
				t.Fatal(ranks[1].lost[0])
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
				t.Fatalf("%d bytes allocated", grown)
			}
		})
	}
}

// No allocation per message, eager or Data, with other goroutines running. The whole process is counted, of several
// stretches the one with the fewest: goroutines of other ranks may still be ending.
func TestNoAllocation(t *testing.T) {
	ranks := connected(t, 2)
	big := pattern(1<<20, 1)
	ranks[1].dst[1] = make([]byte, 1<<20)
	got, done := 0, 0
	ranks[1].onMessage = func(int, *transport.Header, []byte) { got++ }
	counting := &counter{rank: ranks[1]}
	sender := &counter{rank: ranks[0]}
	small := transport.Header{Kind: 2, Bytes: 100}
	data := transport.Header{Kind: transport.Data, Token: 1, Bytes: 1 << 20}
	round := func() {
		for _, n := range []int{8, 100, 5000, 100000} {
			for ranks[0].Send(1, &small, big[:n]) != transport.Sent {
				ranks[1].Poll(counting)
			}
		}
		ranks[0].SendFrom(1, &data, big, 1)
		for got < 4 || sender.completed == 0 || counting.placed == 0 {
			ranks[0].Poll(sender)
			ranks[1].Poll(counting)
		}
		got, sender.completed, counting.placed = 0, 0, 0
		done++
	}
	for range 20 {
		round()
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.Gosched()
			}
		}
	}()
	const stretches, rounds = 8, 100
	least := uint64(math.MaxUint64)
	for range stretches {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range rounds {
			round()
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	if least > rounds/10 {
		t.Fatalf("%d allocations in %d rounds of five messages", least, rounds)
	}
}

// counter is a sink that does not allocate.
type counter struct {
	*rank
	completed, placed int
}

func (c *counter) Complete(uint64, error)        { c.completed++ }
func (c *counter) Placed(int, *transport.Header) { c.placed++ }
