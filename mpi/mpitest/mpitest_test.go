package mpitest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/transport/sim"
)

func TestConformance(t *testing.T) {
	t.Run("copied", func(t *testing.T) { Conformance(t, Simulated()) })
	t.Run("pulled", func(t *testing.T) { Conformance(t, Simulated(Pull())) })
	t.Run("immediate", func(t *testing.T) { Conformance(t, Simulated(Delay(0), PerHost(2))) })
	t.Run("virtual", func(t *testing.T) { ConformanceOneGoroutine(t, Simulated(Virtual(sim.FDR()))) })
}

func TestLosses(t *testing.T) {
	t.Run("copied", func(t *testing.T) { Losses(t, SimulatedKill()) })
	t.Run("pulled", func(t *testing.T) { Losses(t, SimulatedKill(Pull())) })
}

func TestSoak(t *testing.T) {
	Soak(t, 4, Simulated(Pull()))
}

// verdict is a test that takes note of what it is failed with.
type verdict struct {
	testing.TB
	failed []string
}

func (v *verdict) Errorf(format string, args ...any) {
	v.failed = append(v.failed, fmt.Sprintf(format, args...))
}
func (v *verdict) FailNow() { runtime.Goexit() }

// A world that does not close in time fails the test, and not because another rank did.
func TestCloseInTime(t *testing.T) {
	failed := func(end func(ctx context.Context) error) []string {
		v := &verdict{TB: t}
		over := make(chan struct{})
		go func() {
			defer close(over)
			Run(v, 2, func(ctx context.Context, c *mpi.Comm) error {
				if c.Rank() == 0 {
					return nil // and waits for the other's goodbye
				}
				return end(ctx)
			}, Timeout(100*time.Millisecond))
		}()
		<-over
		return v.failed
	}
	late := failed(func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	if len(late) == 0 || !strings.HasPrefix(late[0], "rank 0: close: ") {
		t.Errorf("where a rank is late for its goodbye, the test is failed with %q", late)
	}
	wrong := failed(func(context.Context) error { return errors.New("wrong") })
	if len(wrong) != 1 || wrong[0] != "rank 1: wrong" {
		t.Errorf("where a rank fails, the test is failed with %q", wrong)
	}
}
