package mpitest

import (
	"testing"
	"testing/synctest"
	"time"
)

// InBubble runs a test of ranks that are goroutines in virtual time (testing/synctest). It waits there for a minute after it: the
// collectives of the ranks look now and then whether their world is closed, and end.
func InBubble(t *testing.T, test func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		test(t)
		<-time.After(time.Minute)
	})
}
