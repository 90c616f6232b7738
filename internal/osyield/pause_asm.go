//go:build amd64 || arm64

package osyield

// pause makes count of the processor's own pauses.
//
//go:noescape
func pause(count uint32)
