package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"syscall"
	"testing"
	"time"
)

func TestProfileAndSignalsDuringCalls(t *testing.T) {
	each(t, func(t *testing.T, l launch) { l.ranks(t, 2, "storm") })
}

// HPC sites often lift the stack limit, and glibc then gives threads 2 MiB.
func TestUnlimitedStack(t *testing.T) {
	each(t, func(t *testing.T, l launch) {
		l.Argv = append([]string{"sh", "-c", `ulimit -s unlimited && exec "$@"`, "sh"}, l.Argv...)
		l.ranks(t, 2, "pairs")
	})
}

// storm interrupts calls by the profiler's signal, another signal and the collector's
// preemption, and starts processes, while messages go to and fro.
func storm(ctx context.Context, w *World) error {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGUSR2)
	var profile bytes.Buffer
	if err := pprof.StartCPUProfile(&profile); err != nil {
		return err
	}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := syscall.Kill(os.Getpid(), syscall.SIGUSR2); err != nil {
				stopped <- err
				return
			}
			if n%200 == 0 {
				if out, err := exec.Command("echo", "x").Output(); err != nil || string(out) != "x\n" {
					stopped <- fmt.Errorf("echo: %q %v", out, err)
					return
				}
			}
			if n%50 == 0 {
				runtime.GC()
			}
			nap(20 * time.Microsecond)
		}
	}()
	for _, n := range []int{8, 20_000, 300_000} {
		if err := pingpongs(ctx, w, 4_000_000/(n+1000), make([]byte, n)); err != nil {
			return err
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		return err
	}
	pprof.StopCPUProfile()
	if profile.Len() == 0 {
		return errors.New("an empty profile")
	}
	return nil
}
