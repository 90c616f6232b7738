// Package transporttest is the conformance suite of mpi/transport: every
// provider passes it. A provider's own tests call
//
//	transporttest.Run(t, func(t *testing.T, n int) []transporttest.Rank { … })
//	transporttest.Soak(t, …) // from a function called TestSoak
//
// where the function opens n providers of one world in this process.
//
// The suite sleeps as the engine does: it polls, arms, and then waits in the kernel (or in the provider's Sleeper) until
// something wakes it. A provider that forgets to ring makes a test run into its deadline, and the message says what each rank
// was waiting for. Room after transport.Full has to wake a rank, too.
package transporttest

import (
	"sync"
	"testing"

	"github.com/fisterra-hpc/fisterra/mpi/transport"
)

// Rank is one rank of the world under test.
type Rank struct {
	// Provider is open. The suite connects it to its peers, and closes it.
	Provider transport.Provider
	// Lock is the world's lock. Nil: the suite makes one.
	Lock sync.Locker
	// Set is what the provider was opened with, from NewSet. Nil if the
	// provider implements transport.Sleeper.
	Set *Set
	// Break ends the rank abruptly, as if its process had died. Nil: the suite
	// uses Close, which says no goodbye either.
	Break func()
}

// Factory opens n providers of one new world, ranks 0 to n-1.
type Factory func(t *testing.T, n int) []Rank

// Run runs the whole suite.
func Run(t *testing.T, factory Factory) {
	tests := []struct {
		name string
		run  func(*testing.T, Factory)
	}{
		{"Caps", testCaps},
		{"BadAddress", testBadAddress},
		{"Header", testHeader},
		{"Eager", testEager},
		{"Order", testOrder},
		{"Full", testFull},
		{"Data", testData},
		{"DataCrossing", testDataCrossing},
		{"ShortPlaces", testShortPlaces},
		{"Discard", testDiscard},
		{"ManyOutstanding", testManyOutstanding},
		{"Abandon", testAbandon},
		{"AbandonReading", testAbandonReading},
		{"Memory", testMemory},
		{"Withdraw", testWithdraw},
		{"WithdrawReading", testWithdrawReading},
		{"Take", testTake},
		{"TakeOrder", testTakeOrder},
		{"TakeCredit", testTakeCredit},
		{"SleepPingPong", testSleepPingPong},
		{"Idle", testIdle},
		{"Wake", testWake},
		{"Lost", testLost},
		{"LostInFlight", testLostInFlight},
		{"FlushOnClose", testFlushOnClose},
		{"Detach", testDetach},
		{"DetachInFlight", testDetachInFlight},
		{"NothingLeft", testNothingLeft},
		{"ManyPeers", testManyPeers},
		{"ConcurrentWorlds", testConcurrentWorlds},
		{"Mallocs", testMallocs},
		{"Soak", shortSoak},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, factory) })
	}
}
