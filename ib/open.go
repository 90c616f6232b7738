package ib

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// rdmaFiles are the beginnings of the files by which programs drive RDMA devices: verbs, Omni-Path by PSM, Slingshot.
var rdmaFiles = []string{"/dev/infiniband/uverbs", "/dev/hfi1_", "/dev/cxi"}

// Opened lists the device files of RDMA networks that this process has open, each once: those of a library that drives
// the device from here. It reads as many links as the process has descriptors.
func (h *Host) Opened() ([]string, error) {
	const descriptors = "/proc/self/fd"
	entries, err := os.ReadDir(descriptors)
	if err != nil {
		return nil, fmt.Errorf("ib: this process's open files: %w", err)
	}
	var opened []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		file, err := os.Readlink(filepath.Join(descriptors, e.Name()))
		if errors.Is(err, fs.ErrNotExist) { // closed since it was listed
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ib: this process's open files: %w", err)
		}
		if slices.ContainsFunc(rdmaFiles, func(begin string) bool { return strings.HasPrefix(file, h.path(begin)) }) && !slices.Contains(opened, file) {
			opened = append(opened, file)
		}
	}
	return opened, nil
}
