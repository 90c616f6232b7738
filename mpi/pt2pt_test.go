package mpi

import (
	"context"
	"errors"
	"testing"
)

// TestSendrecvChecksBothSidesFirst: nothing leaves if either side's arguments are refused.
func TestSendrecvChecksBothSidesFirst(t *testing.T) {
	for name, k := range map[string]struct {
		dst, sendTag, src, recvTag int
		want                       error
	}{
		"send rank":    {2, 0, 1, 0, ErrRank},
		"send tag":     {1, -1, 1, 0, ErrTag},
		"receive rank": {1, 0, 2, 0, ErrRank},
		"receive tag":  {1, 0, 1, MaxTag + 1, ErrTag},
	} {
		p := newPlay(0, []string{"2"})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Sendrecv(ended, p.c, make([]byte, 500), k.dst, k.sendTag, make([]byte, 500), k.src, k.recvTag); !errors.Is(err, k.want) {
			t.Errorf("%s: %v, want %v", name, err, k.want)
		}
		p.heard(t, name)
	}
}

// TestProbeRefusedAsProbe: the error of a call names that call.
func TestProbeRefusedAsProbe(t *testing.T) {
	p := newPlay(0, []string{"2"})
	_, rank := p.c.Probe(t.Context(), 2, 0)
	_, _, tag := p.c.Iprobe(1, MaxTag+1)
	for err, want := range map[error]error{rank: ErrRank, tag: ErrTag} {
		if at, ok := errors.AsType[*Error](err); !ok || at.Op != "probe" || !errors.Is(err, want) {
			t.Errorf("%v, want %v of a probe", err, want)
		}
	}
}

// TestPersistentFromNobody: Start does not allocate, as it says, also at the border of a grid.
func TestPersistentFromNobody(t *testing.T) {
	runLocal(t, 1, LocalOptions{}, func(ctx context.Context, c *Comm) error {
		in, out := RecvInit(c, make([]int, 1), ProcNull, 3), SendInit(c, make([]int, 1), ProcNull, 3)
		n := testing.AllocsPerRun(100, func() {
			for _, p := range []*Persistent{in, out} {
				if err := p.Start(); err != nil {
					t.Error(err)
				}
			}
			if s, err := in.Wait(ctx); err != nil || s != nobody {
				t.Errorf("received %+v, %v", s, err)
			}
			if s, err := out.Wait(ctx); err != nil || s != (Status{}) {
				t.Errorf("sent %+v, %v", s, err)
			}
		})
		if n != 0 {
			t.Errorf("%v allocations", n)
		}
		return nil
	})
}
