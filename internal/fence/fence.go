// Package fence orders what processes do to memory that they share, at the
// expense of the side that is in no hurry.
//
// A rank that writes a word and then looks whether anybody sleeps for it, and a
// rank that says it sleeps and then looks at the word, need a full fence each between
// the store and the load, or neither may see the other. The writer would pay
// for its fence with every message. So it leaves it out, and the sleeper runs a
// fence on every processor for both (membarrier(2), Dice, Lev, Moir,
// "Asymmetric flag synchronization", 2001). Between goroutines of one process the same is had for less (Here).
package fence

import "golang.org/x/sys/unix"

const (
	globalExpedited          = 1 << 1
	registerGlobalExpedited  = 1 << 2
	privateExpedited         = 1 << 3
	registerPrivateExpedited = 1 << 4
)

// Register lets the fences of other processes reach this one, and reports
// whether both that and Everywhere work here. Without it, writers need a full fence of their own.
func Register() bool {
	return membarrier(registerGlobalExpedited) && Everywhere()
}

// Everywhere is a full fence on every processor that runs a process that has
// registered. It costs a system call and an interrupt of each of them.
func Everywhere() bool { return membarrier(globalExpedited) }

// RegisterHere lets Here work in this process, and reports whether it does.
func RegisterHere() bool {
	return membarrier(registerPrivateExpedited) && Here()
}

// Here is a full fence on every processor that runs this process.
func Here() bool { return membarrier(privateExpedited) }

// membarrier tries again where the kernel lacks memory, which it does for a moment: a fence that was left out would lose a
// wake-up.
func membarrier(command uintptr) bool {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_MEMBARRIER, command, 0, 0)
		if errno != unix.ENOMEM {
			return errno == 0
		}
	}
}
