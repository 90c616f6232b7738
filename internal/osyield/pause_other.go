//go:build !amd64 && !arm64

package osyield

// pause would be the processor's own.
func pause(uint32) {}
