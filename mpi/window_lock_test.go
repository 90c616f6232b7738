package mpi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// ledger writes down who was granted the lock.
type ledger []string

func (l *ledger) grant(w lockWish) {
	*l = append(*l, fmt.Sprintf("%d%c%s", w.rank, "sx"[w.mode], strings.Repeat("'", int(w.token))))
}

// TestWindowLocks plays wishes, releases, wishes given up and losses against
// the order of grants. "1x" is rank 1 that wants the lock exclusively, "1s"
// shared, "1x'" another wish of its, "-1" a release, "~1" a wish given up, "!1" a loss.
func TestWindowLocks(t *testing.T) {
	tests := []struct{ name, events, grants string }{
		{"first come first served", "1x 2x 3x -1 -2", "1x 2x 3x"},
		{"shared together", "1s 2s 1s 3x -1 -2 -1", "1s 2s 1s 3x"},
		{"nobody passes who waits", "1s 2x 3s -1 -2", "1s 2x 3s"},
		{"a holder is lost", "1x 2x !1", "1x 2x"},
		{"a sharer is lost", "1s 1s 2s 3x !1 -2", "1s 1s 2s 3x"},
		{"one that waits is lost", "1x 2x 3x !2 -1", "1x 3x"},
		{"a wish given up while it waits", "1x 2x 3s ~2 -1", "1x 3s"},
		{"a wish given up when it has been granted", "1x ~1 2x", "1x 2x"},
		{"a wish given up lets others pass", "1s 2x 3s ~2", "1s 3s"},
		{"the first of two wishes given up", "2x 1s 1x' ~1 -2", "2x 1x'"},
		{"the second of two wishes given up", "2x 1s 1x' ~1' -2", "2x 1s"},
		{"the granted one of two wishes given up", "1x 1x' 2x ~1 -1", "1x 1x' 2x"},
		{"the waiting one of two wishes given up", "1x 1x' 2x ~1' -1", "1x 2x"},
		{"a shared lock given up beside another", "1s 1s' 2x ~1' -1", "1s 1s' 2x"},
		{"a release of nothing", "-1 1x -2 2x -1", "1x 2x"},
	}
	for _, test := range tests {
		k := windowLocks{holder: -1}
		var got ledger
		for _, event := range strings.Fields(test.events) {
			rank := int(strings.Trim(event, "-~!sx'")[0] - '0')
			token := uint64(strings.Count(event, "'"))
			switch event[0] {
			case '-':
				k.release(&got, rank)
			case '~':
				k.cancel(&got, rank, token)
			case '!':
				k.forget(rank)
				k.serve(&got)
			default:
				k.ask(&got, lockWish{rank: rank, mode: LockMode(strings.IndexByte("sx", event[1])), token: token})
			}
		}
		if want := strings.Fields(test.grants); !slices.Equal([]string(got), want) {
			t.Errorf("%s: granted %v, want %v", test.name, got, want)
		}
	}
}
