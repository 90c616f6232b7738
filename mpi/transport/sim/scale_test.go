package sim

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/need"
	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// TestVirtualScale: 4096 ranks in O(log P) rounds, and a ring, with payloads of
// which only the sizes travel. With FISTERRA_LARGE set the ring has 1024 ranks and
// 2.1 million messages.
func TestVirtualScale(t *testing.T) {
	ring := func(n *node) {
		big := n.Fabric().blank[:8192]
		for i := 1; i <= 2*(n.Fabric().Size()-1); i++ {
			n.SendFrom((n.rank+1)%n.Fabric().Size(), &transport.Header{Kind: 2}, big, uint64(i))
			n.until(func() bool { _, back := n.done[uint64(i)]; return back && n.got >= i })
			delete(n.done, uint64(i))
			n.order = n.order[:0]
		}
	}
	cases := []struct {
		name  string
		ranks int
		main  func(n *node)
	}{
		{"dissemination", 4096, func(n *node) { disseminate(n, 4, 8) }},
		{"ring", 1024, ring},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if need.RaceDetector || c.name == "ring" && os.Getenv("FISTERRA_LARGE") == "" {
				c.ranks /= 8
			}
			begun := time.Now()
			f, err := virtual(t, Config{Ranks: c.ranks, Network: HDR100(), SizesOnly: true}, c.main)
			if err != nil {
				t.Fatal(err)
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			took, s := time.Since(begun), f.Stats()
			t.Logf("%d ranks: %v of virtual time in %v: %d messages, %d events (%.2f million a second), %d resumes, %d MiB from the system",
				c.ranks, f.Elapsed(), took.Round(time.Millisecond), s.Messages, s.Events, float64(s.Events)/took.Seconds()/1e6, s.Resumes, m.Sys>>20)
			if m.Sys > 1<<30 {
				t.Errorf("%d MiB from the system for %d ranks", m.Sys>>20, c.ranks)
			}
		})
	}
}
