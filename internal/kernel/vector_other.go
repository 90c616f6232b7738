//go:build !amd64

package kernel

func vectorSum(Type) Func { return nil }
