package collective

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
)

// News that its sender gave up on its way has left a receive. The sender's next news, which is shorter or longer, does no harm, and
// where none comes that of others is read.
func TestReceiveThatGivenUpNewsLeaves(t *testing.T) {
	const lengthBytes = newsHead + 100
	for _, k := range []struct {
		name  string
		from  int
		since time.Time // of the receive
		text  string
		want  string // that collectives end with; none: they go on
	}{
		{"a shorter one", 1, time.Now().Add(time.Hour), "why", "cancelled: why"},
		{"a longer one", 1, time.Now().Add(time.Hour), strings.Repeat("why", lengthBytes), ""},
		{"another's", 2, time.Now().Add(-time.Hour), "why", "cancelled: why"},
	} {
		t.Run(k.name, func(t *testing.T) {
			together(t, 3, func(ctx context.Context, c *mpi.Comm) error {
				shadow := c.Shadow()
				if c.Rank() == k.from {
					abort := news{kind: newsAbort, class: classGaveUp, seq: 1, text: k.text}
					return errors.Join(mpi.Send(ctx, shadow, abort.encode(), 0, ctrlTag), mpi.Send(ctx, c, []byte{1}, 0, 0))
				}
				if c.Rank() != 0 {
					return nil
				}
				s := stateOf(c)
				left := make([]byte, lengthBytes)
				s.watch.letter = letter{left, 1, mpi.Irecv(shadow, left, 1, ctrlTag), k.since}
				if _, err := mpi.Recv(ctx, c, make([]byte, 1), k.from, 0); err != nil { // behind the news, which has come
					return err
				}
				reads := s.read(shadow)
				switch b := s.broken.Load(); {
				case !reads, s.watch.letter.text != nil:
					return fmt.Errorf("reads on: %v, and waits for %d B", reads, len(s.watch.letter.text))
				case b == nil && k.want == "", b != nil && b.Err.Error() == k.want:
					return nil
				default:
					return fmt.Errorf("collectives end with %v, want %q", b, k.want)
				}
			})
		})
	}
}
