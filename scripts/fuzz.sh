#!/bin/bash
# Runs every fuzz target of the module for a while each: go test takes one at a time.
#
#   scripts/fuzz.sh [TIME] [DIR...]         default 10s each, whole module
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
time=${1:-10s}; [ $# -gt 0 ] && shift
roots=("$@"); [ $# -gt 0 ] || roots=(.)
failed=() count=0
while IFS=: read -r file name; do
  dir=$(dirname "$file")
  echo "fuzz: $dir $name $time"
  count=$((count + 1))
  ${GO:-go} test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "./${dir#./}" || failed+=("$dir $name")
done < <(grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' "${roots[@]}" | sed 's/:func /:/' | sort)
if [ ${#failed[@]} -gt 0 ]; then
  printf 'fuzz: FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "fuzz: $count targets passed"
