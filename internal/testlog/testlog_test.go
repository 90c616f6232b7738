package testlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestAwait(t *testing.T) {
	var b Buffer
	go func() {
		for i := range 100 {
			fmt.Fprintf(&b, "line %d\n", i)
		}
	}()
	if err := b.Await(t.Context(), func(s string) bool { return strings.Contains(s, "line 99\n") }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Await(ctx, func(string) bool { return false }); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "line 7") {
		t.Fatalf("the end of the wait: %v", err)
	}
}
