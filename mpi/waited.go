package mpi

import (
	"context"
	"time"
)

// waited waits for d, and reports false where ctx has ended before.
func waited(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
