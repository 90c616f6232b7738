package collective

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

func TestBriefly(t *testing.T) {
	for stack, want := range map[string]string{
		`goroutine 1 [select, 2 minutes]:
internal/poll.runtime_pollWait(0x7f37cc254000, 0x72)
	/usr/local/go/src/runtime/netpoll.go:351 +0x85
example.org/a/ps.(*Worker).Push(0xf1d4077c958, {0xa4e940, 0xf1d40849340})
	/src/ps/push.go:31 +0x2c7
example.org/a/collective.Allgather[...]({0xa4e940?, 0xf1d40849340}, 0xf1d407f85a0, {0xf1d43476000, 0x3?, 0x4b8b13?})
	/src/collective/blocks.go:104 +0xd3
main.main()
	/src/main.go:9 +0xe6
`: "goroutine 1 [select, 2 minutes]: ps.(*Worker).Push (push.go:31) < collective.Allgather[...] (blocks.go:104) < main.main (main.go:9)",
		`goroutine 36 [IO wait]:
net.(*conn).Read(0xf1d40806518, {0xf1d41c40000?, 0x7f37cc3fc108?, 0xf1d40793008?})
	/usr/local/go/src/net/net.go:196 +0x45
example.org/a/wire.Read(...)
	/src/wire/frame.go:32
created by sync.(*WaitGroup).Go in goroutine 31
	/usr/local/go/src/sync/waitgroup.go:238 +0x73`: "goroutine 36 [IO wait]: wire.Read (frame.go:32)",
		`goroutine 5 [sync.Mutex.Lock]:
sync/atomic.(*Value).Load(...)
	sync/atomic/value.go:31
trainer.Step[...](0x1)
	trainer/step.go:7 +0x45
trainer/data.(*Set).Next(0x1, {0x2, 0x3})
	trainer/data/set.go:8 +0x45
trainers/other.Call()
	trainers/other/call.go:1 +0x45
`: "goroutine 5 [sync.Mutex.Lock]: trainer.Step[...] (step.go:7) < data.(*Set).Next (set.go:8)",
		"goroutine 7 [running]:": "goroutine 7 [running]: ",
	} {
		if got, _ := briefly(stack, []string{"", "trainer"}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The program's module is known, which need not be named after a domain.
func TestProgramModules(t *testing.T) {
	const here = "github.com/fisterra-hpc/fisterra"
	if got := programModules(); !slices.Contains(got, here) {
		t.Errorf("%q, want %q among them", got, here)
	}
}

// What this goroutine does is in its process's stacks, on one line.
func TestProgramStacks(t *testing.T) {
	if got := programStacks(); !strings.Contains(got, "collective.TestProgramStacks (stacks_test.go:") || strings.Contains(got, "\n") || len(got) > stackBytes {
		t.Error(got)
	}
}

// The stacks are taken once for all that ask within a second.
func TestStacksAreKept(t *testing.T) {
	var k stacks
	taken, start := 0, time.Now()
	for _, after := range []time.Duration{0, 1, stacksKept - 1, stacksKept, stacksKept + 1, 3 * stacksKept} {
		k.text(start.Add(after), func() string { taken++; return "" })
	}
	if taken != 3 {
		t.Errorf("taken %d times, want 3", taken)
	}
}

// A goroutine deep in a recursion does not hide the others.
func TestDeepStackHidesNoOther(t *testing.T) {
	waits, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	var deep func(n int)
	deep = func(n int) {
		if n > 0 {
			deep(n - 1)
			return
		}
		waits <- struct{}{}
		<-end
	}
	go deep(90)
	<-waits
	go behind(waits, end) // younger
	<-waits
	got := programStacks()
	for _, want := range []string{"TestDeepStackHidesNoOther.func1 (stacks_test.go:", " …", "collective.behind (stacks_test.go:"} {
		if !strings.Contains(got, want) || len(got) > stackBytes {
			t.Errorf("%d bytes, which do not say %q: %s", len(got), want, got)
		}
	}
}

func behind(waits, end chan struct{}) {
	waits <- struct{}{}
	<-end
}

// Goroutines of the library's own, of which there are more the more peers there are, hide none of the program's.
func TestLibraryHidesNoProgram(t *testing.T) {
	const size = 8
	for name, over := range map[string]func(*testing.T, int, func(context.Context, *mpi.Comm) error){"shm": overSharedMemory, "tcp": overTCP} {
		t.Run(name, func(t *testing.T) {
			waits, end := make(chan struct{}), make(chan struct{})
			var others sync.WaitGroup
			others.Add(size - 1)
			over(t, size, func(ctx context.Context, c *mpi.Comm) error {
				err := Allgather(ctx, c, []int32{1}, make([]int32, size)) // after which all have look-outs, and peers
				if c.Rank() > 0 {
					others.Done()
					<-end
					return err
				}
				defer close(end)
				go behind(waits, end)
				<-waits
				others.Wait()
				if err != nil {
					return err
				}
				got := programStacks()
				for call, told := range map[string]bool{
					"collective.behind (stacks_test.go:": true, "TestLibraryHidesNoProgram": true, "(*Provider)": false, "(*Door)": false, "startKeeper": false, "lookOut": false,
				} {
					if strings.Contains(got, call) != told {
						return fmt.Errorf("%q in the stacks is not %v: %s", call, told, got)
					}
				}
				return nil
			})
		})
	}
}
