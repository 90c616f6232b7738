package mpi

import (
	"context"
	"errors"
	"testing"
)

// TestRequestErrorsNameTheRank: errors of requests say which rank they are of.
func TestRequestErrorsNameTheRank(t *testing.T) {
	p, other := newPlay(2, []string{"3"}), newPlay(1, []string{"3"})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	spentBy := func(call func(r Request) error) error {
		r := Irecv(p.c, make([]byte, 1), 0, 0)
		_, _ = r.Wait(ended) // it is spent by that
		return call(r)
	}
	started := RecvInit(p.c, make([]byte, 1), 0, 0)
	if err := started.Start(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"wait":    spentBy(func(r Request) error { _, err := r.Wait(t.Context()); return err }),
		"test":    spentBy(func(r Request) error { _, _, err := r.Test(); return err }),
		"waitall": spentBy(func(r Request) error { return WaitAll(t.Context(), []Request{r}) }),
		"waitany": spentBy(func(r Request) error { _, _, err := WaitAny(t.Context(), []Request{r}); return err }),
		"ended": func() error {
			_, _, err := WaitAny(ended, []Request{Irecv(p.c, make([]byte, 1), 0, 0)})
			return err
		}(),
		"two worlds": func() error {
			_, _, err := WaitAny(ended, []Request{Irecv(p.c, make([]byte, 1), 0, 0), Irecv(other.c, make([]byte, 1), 0, 0)})
			return err
		}(),
		"started twice": started.Start(),
	} {
		if at, ok := errors.AsType[*Error](err); !ok || at.Rank != 2 {
			t.Errorf("%s: %v, which is of rank 2", what, err)
		}
	}
}
