package ib

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestOpened(t *testing.T) {
	h := &Host{Root: t.TempDir()}
	files := map[string]bool{ // that drive a device
		"dev/infiniband/uverbs0": true, "dev/infiniband/rdma_cm": false, "dev/hfi1_0": true, "dev/cxi1": true, "dev/null": false,
	}
	var want []string
	for name, drives := range files {
		path := filepath.Join(h.Root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
		}
		if drives {
			want = append(want, path)
		}
	}
	closed, err := os.Create(filepath.Join(h.Root, "dev/infiniband/uverbs1"))
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	got, err := h.Opened()
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if got, err := (&Host{Root: t.TempDir()}).Opened(); err != nil || len(got) > 0 {
		t.Errorf("of another host: %q, %v", got, err)
	}
}
