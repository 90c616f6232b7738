#!/bin/bash
# Writes cmd/fisterra/default.pgo, by which go build compiles the command: CPU profiles of its ranks
# in the operations whose time is their own, short messages and vectors, and in training.
#
#   scripts/profile.sh
#
# What is not there to be measured, such as an MPI library, is named and left out.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

CGO_ENABLED=0 "$go" build -trimpath -pgo=off -o "$dir/fisterra" ./cmd/fisterra
n=0
profiled() { # [launcher...] -- arguments of fisterra...
  local launcher=()
  while [ "$1" != -- ]; do launcher+=("$1"); shift; done
  shift
  n=$((n + 1))
  echo "profile: ${launcher[*]} fisterra $*"
  timeout 120 "${launcher[@]}" "$dir/fisterra" "$@" --cpuprofile "$dir/$n" >/dev/null
}

profiled -- bench mbw_mr --sizes 8 --budget 5s
profiled -- bench latency --transport shm --sizes 8,4K,64K --budget 3s
profiled -- bench latency --transport tcp --sizes 8,4K,64K --budget 2s
for op in allreduce bcast allgather alltoall reduce_scatter; do
  profiled -- bench "$op" --sizes 8,4K --budget 2s
done
profiled -- bench allreduce -n 4 --sizes 8,4K --budget 2s
profiled -- bench allreduce --transport tcp --sizes 8,4K --budget 2s
profiled -- train --workers 1
for launcher in mpirun.openmpi mpiexec.mpich; do
  if command -v "$launcher" >/dev/null; then
    profiled "$launcher" -n 2 -- bench latency --transport mpi --sizes 8,4K --budget 3s
  else
    echo "profile: without $launcher, which is not here"
  fi
done
"$go" run ./internal/pgo -o cmd/fisterra/default.pgo "$dir"/[0-9]*
ls -l cmd/fisterra/default.pgo
