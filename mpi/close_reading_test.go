package mpi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// readingScript is read by rank 1 as long as reading says, and until it is closed at the latest.
type readingScript struct {
	pullScript
	reading *bool
	closing func()
}

func (s readingScript) Withdraw(int, transport.Key) bool { return !*s.reading }
func (s readingScript) Close() error {
	s.closing()
	return nil
}

// TestCloseAmidRead: the world closes while a send waits for its memory, which the receiver has yet to let go of, and a
// receive is inside the provider. The send ends once: at once if its memory is free, else when the provider is closed.
func TestCloseAmidRead(t *testing.T) {
	for name, reading := range map[string]bool{"still read": true, "read": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlay(0, []string{"2"})
				was, early := true, false
				var done <-chan struct{}
				p.e.use(readingScript{pullScript{p.s}, &was, func() {
					select {
					case <-done:
						early = true
					default:
					}
				}})
				send := Isend(p.c, make([]byte, 500), 1, 0)
				done = send.Done()
				p.arrive(transport.Header{Kind: kindFIN, Token: send.o.token()}, nil)
				closed := make(chan error, 1)
				first := true
				p.s.poll = func(s transport.Sink) int {
					if first {
						first = false
						s.Outside(func() {
							was = reading
							go func() { closed <- p.c.world.Close(context.Background()) }()
							synctest.Wait()
						})
					}
					return 0
				}
				if _, err := Recv(t.Context(), p.c, make([]byte, 8), 1, 7); !errors.Is(err, ErrClosed) {
					t.Errorf("the receive ended with %v", err)
				}
				if err := <-closed; err != nil {
					t.Error(err)
				}
				if early == reading {
					t.Errorf("the send had ended before the provider was closed: %v; its memory was being read then: %v", early, reading)
				}
				if _, err := send.Wait(t.Context()); !errors.Is(err, ErrClosed) {
					t.Errorf("the send ended with %v", err)
				}
			})
		})
	}
}

// TestWaitAmidClose: who waits for an operation that a provider holds does not poll a provider that is being closed.
func TestWaitAmidClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(0, []string{"2"})
		was, polled := true, false
		release := make(chan struct{})
		p.e.use(readingScript{pullScript{p.s}, &was, func() {
			p.s.poll = func(transport.Sink) int {
				polled = true
				return 0
			}
			<-release
		}})
		send := Isend(p.c, make([]byte, 500), 1, 0)
		closed := make(chan error, 1)
		go func() { closed <- p.c.world.Close(context.Background()) }()
		synctest.Wait()
		go func() {
			synctest.Wait()
			close(release)
		}()
		if _, err := send.Wait(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("the send ended with %v", err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if polled {
			t.Error("a provider was polled while it was being closed")
		}
	})
}
