package main

import (
	"strings"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// What collectives report of a stall is shown without --verbose, with the rank that says so.
func TestStallReportsAreShown(t *testing.T) {
	worlds, err := mpi.Local(1, mpi.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer worlds[0].Close(t.Context())
	var errs strings.Builder
	j := &job{env: environment{stderr: &errs}, connect: connectFlags{transport: "auto", infiniband: "auto", collectives: "auto", start: time.Minute}}
	cfg, err := j.connect.config(j.env, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.configure(worlds[0], cfg.Log); err != nil {
		t.Fatal(err)
	}
	log := collective.ConfigOf(worlds[0].Comm()).Log
	if log == nil {
		t.Fatal("collectives have no log")
	}
	log.Warn("nobody comes")
	if text := errs.String(); !strings.Contains(text, "nobody comes") || !strings.Contains(text, "rank=0") {
		t.Errorf("stderr has %q", text)
	}
}
