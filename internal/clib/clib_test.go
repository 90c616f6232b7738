//go:build linux && (amd64 || arm64) && !purego_off

package clib

import (
	"errors"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

func libc(t testing.TB) *Library {
	t.Helper()
	l, err := Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// snprintf takes a fixed and a variable number of arguments, so it sees every slot of
// the block: six in registers and six on the stack on amd64, eight and four on arm64.
func TestCallPassesTwelveArguments(t *testing.T) {
	f := libc(t).Sym("snprintf")
	buf := make([]byte, 200)
	format := Bytes("%d %d %ld %d %d %d %d %d %s")
	last := Bytes("end")
	minus := -2
	n := Call(f, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(unsafe.Pointer(&format[0])),
		1, uintptr(minus), 1<<40, 4, 5, 6, 7, 8, uintptr(unsafe.Pointer(&last[0])))
	const want = "1 -2 1099511627776 4 5 6 7 8 end"
	if got := Text(buf); got != want || int(n) != len(want) {
		t.Errorf("snprintf wrote %q and returned %d, want %q and %d", got, int(n), want, len(want))
	}
}

func TestBlockCallsAndKeepsTheResult(t *testing.T) {
	b := Block{Fn: libc(t).Sym("atoi")}
	s := Bytes("-17")
	b.A[0] = uintptr(unsafe.Pointer(&s[0]))
	b.Call()
	runtime.KeepAlive(s)
	if got := int32(b.R); got != -17 {
		t.Errorf("atoi = %d, want -17", got)
	}
}

var onHeap []int32

// atoi serves as the start, whose result is 0 or not, and memcmp as the poll.
func TestChainStopsWhereItShould(t *testing.T) {
	l := libc(t)
	number, compare := l.Sym("atoi"), l.Sym("memcmp")
	zero, seven := Bytes("0"), Bytes("7")
	same, other := Bytes("same"), Bytes("othr")
	flags := []int32{0, 1}
	onHeap = flags
	for _, c := range []struct {
		name             string
		start            []byte
		a, b             []byte
		flag             *int32
		tries, wantTries uintptr
		wantPolled       bool
	}{
		{"flag never set: all tries", zero, same, same, &flags[0], 5, 0, true},
		{"flag set: one try", zero, same, same, &flags[1], 5, 4, true},
		{"poll fails: one try", zero, same, other, &flags[0], 5, 4, true},
		{"start fails: none", seven, same, same, &flags[0], 5, 5, false},
		{"no start", nil, same, same, &flags[1], 3, 2, true},
		{"no tries", zero, same, same, &flags[1], 0, 0, false},
	} {
		const untouched = 0xbad
		ch := Chain{Flag: uintptr(unsafe.Pointer(c.flag)), Tries: c.tries}
		if c.start != nil {
			ch.Start.Fn = number
			ch.Start.A[0] = uintptr(unsafe.Pointer(&c.start[0]))
		}
		ch.Poll = Block{Fn: compare, A: [MaxArgs]uintptr{uintptr(unsafe.Pointer(&c.a[0])), uintptr(unsafe.Pointer(&c.b[0])), 4}, R: untouched}
		brief := ch
		ch.Call()
		brief.CallBrief()
		if brief != ch {
			t.Errorf("%s: CallBrief left %+v, Call %+v", c.name, brief, ch)
		}
		if ch.Tries != c.wantTries || (ch.Poll.R != untouched) != c.wantPolled {
			t.Errorf("%s: %d tries left, want %d; poll's result %#x", c.name, ch.Tries, c.wantTries, ch.Poll.R)
		}
	}
	runtime.KeepAlive([][]byte{zero, seven, same, other})
}

func TestStringStopsAtNULOrLimit(t *testing.T) {
	s := Bytes("fisterra\x00tail")
	p := uintptr(unsafe.Pointer(&s[0]))
	for _, c := range []struct {
		limit int
		want  string
	}{{100, "fisterra"}, {4, "fist"}, {0, ""}} {
		if got := String(p, c.limit); got != c.want {
			t.Errorf("String(limit %d) = %q, want %q", c.limit, got, c.want)
		}
	}
	if got := String(0, 9); got != "" {
		t.Errorf("String(nil) = %q", got)
	}
	runtime.KeepAlive(s)
}

func TestOpenAndSymbols(t *testing.T) {
	l := libc(t)
	if filepath.Base(l.Path()) != "libc.so.6" || !filepath.IsAbs(l.Path()) {
		t.Errorf("Path = %q, want the absolute path of libc.so.6", l.Path())
	}
	if l.Sym("no_such_symbol_here") != 0 || Global("no_such_symbol_here") != 0 {
		t.Error("an absent symbol has an address")
	}
	if l.Sym("strlen") == 0 || Global("strlen") == 0 {
		t.Error("strlen not found")
	}
	_, err := Open("libno_such_library.so.9")
	if !errors.Is(err, ErrNotLoaded) || !strings.Contains(err.Error(), "libno_such_library.so.9") {
		t.Errorf("opening an absent library: %v", err)
	}
	if _, err := Open(""); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("opening the empty name: %v", err)
	}
}

func TestCallDoesNotAllocate(t *testing.T) {
	f := libc(t).Sym("labs")
	fewest := uint64(math.MaxUint64) // of a few rounds: what else the runtime does falls into one of them
	for range 4 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range 10_000 {
			b := Block{Fn: f, A: [MaxArgs]uintptr{uintptr(i)}}
			if b.Call() != uintptr(i) {
				t.Fatal("labs is wrong")
			}
		}
		runtime.ReadMemStats(&after)
		fewest = min(fewest, after.Mallocs-before.Mallocs)
	}
	if fewest > 50 {
		t.Errorf("%d allocations in 10000 calls", fewest)
	}
}

// A block on the stack of a goroutine that grows, under a collector that runs all the
// time, must keep its place for as long as C writes to it.
func TestCallsSurviveStackGrowthAndCollection(t *testing.T) {
	f := libc(t).Sym("labs")
	onHeap = make([]int32, 1)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	defer close(stop)
	var deep func(n int) int
	deep = func(n int) int {
		b := Block{Fn: f, A: [MaxArgs]uintptr{uintptr(n)}}
		c := Chain{Poll: b, Flag: uintptr(unsafe.Pointer(&onHeap[0])), Tries: 1}
		c.CallBrief()
		if b.Call() != uintptr(n) || c.Poll.R != uintptr(n) {
			t.Errorf("call at depth %d is wrong", n)
		}
		if n == 0 {
			return 0
		}
		return 1 + deep(n-1)
	}
	done := make(chan struct{})
	for range 8 {
		go func() {
			for range 20 {
				deep(500)
			}
			done <- struct{}{}
		}()
	}
	for range 8 {
		<-done
	}
}

func TestSignalsComeBack(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGUSR1)
	defer signal.Stop(caught)
	saved := Signals()

	set := libc(t).Sym("signal")
	const ignore = 1
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGSEGV, syscall.SIGHUP} {
		Call(set, uintptr(s), ignore)
	}
	changed, err := saved.Restore()
	if err != nil {
		t.Fatal(err)
	}
	if want := []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGSEGV}; !slices.Equal(changed, want) {
		t.Errorf("restored %v, want %v", changed, want)
	}
	if changed, _ := saved.Restore(); len(changed) != 0 {
		t.Errorf("a second Restore changed %v", changed)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	<-caught
	if r := nilDereference(); r == nil {
		t.Error("a nil dereference did not panic")
	}
}

func nilDereference() (recovered any) {
	defer func() { recovered = recover() }()
	var p *int
	return *p
}

func BenchmarkCall7(b *testing.B) {
	f := libc(b).Sym("labs")
	b.ReportAllocs()
	block := Block{Fn: f, A: [MaxArgs]uintptr{1, 2, 3, 4, 5, 6, 7}}
	for b.Loop() {
		block.Call()
	}
}

func BenchmarkChain(b *testing.B) {
	f := libc(b).Sym("labs")
	flag := new(int32)
	c := Chain{Start: Block{Fn: f}, Poll: Block{Fn: f}, Flag: uintptr(unsafe.Pointer(flag))}
	b.ReportAllocs()
	for b.Loop() {
		c.Tries = 1
		c.Call()
	}
}

func BenchmarkChainBrief(b *testing.B) {
	f := libc(b).Sym("labs")
	onHeap = make([]int32, 1)
	c := Chain{Start: Block{Fn: f}, Poll: Block{Fn: f}, Flag: uintptr(unsafe.Pointer(&onHeap[0]))}
	b.ReportAllocs()
	for b.Loop() {
		c.Tries = 1
		c.CallBrief()
	}
}

func BenchmarkCallVariadic7(b *testing.B) {
	f := libc(b).Sym("labs")
	b.ReportAllocs()
	for b.Loop() {
		Call(f, 1, 2, 3, 4, 5, 6, 7)
	}
}
