//go:build !amd64

package shm

import "sync/atomic"

// publish stores v at p after all earlier stores.
func publish(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// publishIsFence says whether loads after publish see what other ranks stored before they could see v.
const publishIsFence = true
