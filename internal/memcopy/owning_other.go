//go:build !amd64 || race

package memcopy

// owning is copy where there is no better, and where the race detector is to see it.
func owning(dst, src []byte) { copy(dst, src) }

func ownAhead(*byte, int) {}
