#!/bin/bash
# Runs every fuzz target of the module for a while each: go test takes one at a time.
#
#   scripts/fuzz.sh [TIME] [DIR...]         default 10s each, whole module
#
# A run that ends in "context deadline exceeded" without a failing input has found nothing: when
# the time is up on a busy machine, go test may report its own deadline (golang/go#75804).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
time=${1:-10s}; [ $# -gt 0 ] && shift
roots=("$@"); [ $# -gt 0 ] || roots=(.)
failed=() count=0
# Copies its input to both outputs. Whoever opens /dev/stderr, as tee would, truncates the file that it is.
copy() {
  while IFS= read -r line || [ -n "$line" ]; do
    printf '%s\n' "$line"
    printf '%s\n' "$line" >&2
  done
}
while IFS=: read -r file name; do
  dir=$(dirname "$file")
  echo "fuzz: $dir $name $time"
  count=$((count + 1))
  if ! out=$(${GO:-go} test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "./${dir#./}" 2>&1 | copy); then
    if grep -q '^ *context deadline exceeded$' <<<"$out" && ! grep -q 'Failing input written' <<<"$out"; then
      echo "fuzz: $name: its time was up, and it found nothing"
    else
      failed+=("$dir $name")
    fi
  fi
done < <(grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' "${roots[@]}" | sed 's/:func /:/' | sort)
if [ $count -eq 0 ]; then
  echo "fuzz: no targets in the tests below ${roots[*]}" >&2
  exit 1
fi
if [ ${#failed[@]} -gt 0 ]; then
  printf 'fuzz: FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "fuzz: $count targets passed"
