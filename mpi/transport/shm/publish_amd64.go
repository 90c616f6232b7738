package shm

// publish stores v at p after all earlier stores, without waiting for them to
// become visible. atomic.StoreUint64 is an XCHG here and stalls until the cache
// line has been fetched from the peer, which is most of what a message costs a
// sender; amd64 keeps stores in order without that. What is lost is the order
// with later loads, for which see doorbell.go.
//
//go:noescape
func publish(p *uint64, v uint64)

// publishIsFence says whether loads after publish see what other ranks stored before they could see v.
const publishIsFence = false
