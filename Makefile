# Fisterra's targets. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
PKG ?= ./...
# The tests of each package have to end by themselves, whatever hangs.
TESTTIMEOUT ?= 25m
# Tests that say they may run beside others: on a cluster, or with processes of their own, and mostly waiting.
PARALLEL ?= 3
# Packages tested at a time: most of what the tests take is waiting, for deadlines and launchers.
PACKAGES ?= 2
FUZZTIME ?= 10s
SOAKTIME ?= 10m
LAUNCHES ?= 7
# Only the binary that people run is compiled by the profile (cmd/fisterra/default.pgo): tests would compile everything a second time.
export GOFLAGS := $(shell $(GO) env GOFLAGS) -pgo=off
# go test -run by name: the tests that bring up the Slurm cluster (internal/lab holds them to that
# name), and those that start MPI's launchers, in packages that are not about MPI libraries anyway.
CLUSTERTESTS := ^TestCluster
MPITESTS := ^TestMPI
# What takes more memory than every machine has.
LARGETESTS := ^TestConformance$$/./^Large$$|^TestConformance(Shm|ShmOneCopy|TCP)$$/^Large$$|^TestVirtualScale
MPIPACKAGES := $(addsuffix /...,$(wildcard ./mpi/native ./mpi/pmix ./slurm/pmi))
# The directories whose tests contain a function of that name: only they are compiled.
dirs = $(shell grep -rlE --include='*_test.go' '^func $(patsubst ^%,%,$(1))' . 2>/dev/null | xargs -r -n1 dirname | sort -u)
summary = $(GO) run ./internal/testsum

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/fisterra, without a C compiler
	CGO_ENABLED=0 $(GO) build -pgo=auto -o bin/ ./cmd/fisterra

.PHONY: profile
profile: ## the profile by which the binary is compiled, from measurements on this machine
	@scripts/profile.sh

.PHONY: test
test: ## every test this machine can run, and which were skipped and why
	@$(summary) -p $(PACKAGES) -parallel $(PARALLEL) -timeout $(TESTTIMEOUT) -- $(PKG)

.PHONY: check
check: ## gofmt, vet, staticcheck, build without C, tidy, and the tests under the race detector
	@scripts/check.sh $(PKG)

.PHONY: bench
bench: ## the Go benchmarks (fisterra bench measures messages: see README)
	@for d in $(call dirs,Benchmark); do $(GO) test -run '^$$' -bench . -benchmem $$d || exit 1; done

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10s) each
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: cluster-test
cluster-test: ## the tests on a real Slurm of several nodes, brought up in namespaces of this machine
	@$(summary) -count=1 -p 1 -parallel $(PARALLEL) -timeout 10m -run '$(CLUSTERTESTS)' -- $(call dirs,$(CLUSTERTESTS))

.PHONY: mpi-test
mpi-test: ## the tests with Open MPI, MPICH, PMIx and Hydra, without Slurm
	@$(summary) -count=1 -p 1 -timeout 10m -skip '$(CLUSTERTESTS)' -- $(MPIPACKAGES)
	@$(summary) -count=1 -p 1 -timeout 10m -run '$(MPITESTS)' -- $(call dirs,$(MPITESTS))

.PHONY: peers
peers: build ## Fisterra beside Open MPI, MPICH and Gloo: a table, and build/peers.json
	@$(GO) run ./bench/peers -launches $(LAUNCHES) -json build/peers.json

# Each soak test ends after SOAKTIME, and every world in it has a deadline: all together take as long as SOAKTIME says.
.PHONY: soak
soak: ## the seeded soak tests, SOAKTIME (10m) each, and messages beyond 4 GiB
	@FISTERRA_SOAK=$(SOAKTIME) $(summary) -count=1 -p 1 -timeout 0 -run Soak -- $(call dirs,Test[A-Za-z0-9_]*Soak)
	@FISTERRA_LARGE=1 $(summary) -count=1 -p 1 -timeout 30m -run '$(LARGETESTS)' -- ./mpi/mpitest ./mpi/transport/sim

.PHONY: install-parts
install-parts: ## install what the tests can use: Slurm, MPI libraries (Debian, root)
	@scripts/install-parts.sh
