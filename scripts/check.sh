#!/bin/bash
# The gate of `make check`: what a change must pass before it is handed over. Runs every
# step even when one fails, and ends with the list of those that did.
#
#   scripts/check.sh [PACKAGES...]          default ./...
#
# RACE_PACKAGES limits what runs under the race detector, which takes longest.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
go=${GO:-go}
packages=("$@"); [ $# -gt 0 ] || packages=(./...)
failed=()

step() { # name command...
  local name=$1; shift
  echo "check: $name"
  "$@" || failed+=("$name")
}
formatted() {
  local files
  files=$({ git ls-files -z --cached --others --exclude-standard '*.go' || exit; } |
    { while IFS= read -rd '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done; } |
    xargs -0 -r "$("$go" env GOROOT)/bin/gofmt" -l) || { echo "gofmt could not look at the files"; return 1; }
  [ -z "$files" ] || { echo "gofmt would change:"; echo "$files"; return 1; }
}
race() {
  local cc
  read -ra cc <<<"${CC:-gcc}" # a command may have arguments, as "ccache gcc"
  if ! command -v "${cc[0]}" >/dev/null; then
    if [[ ,${FISTERRA_REQUIRE:-}, =~ ,(race|all), ]]; then
      echo "race is required by FISTERRA_REQUIRE but absent: no ${CC:-gcc}"
      return 1
    fi
    echo "check: race detector skipped: it needs gcc, and there is no ${CC:-gcc} here"
    return 0
  fi
  local race=("${packages[@]}")
  [ -z "${RACE_PACKAGES:-}" ] || read -ra race <<<"$RACE_PACKAGES"
  CGO_ENABLED=1 "$go" run ./internal/testsum -race -short -p 1 -timeout 20m -- "${race[@]}"
}

step gofmt formatted
step vet "$go" vet "${packages[@]}"
step staticcheck "$go" tool staticcheck "${packages[@]}"
step "build without C" env CGO_ENABLED=0 "$go" build "${packages[@]}"
step "go mod tidy" "$go" mod tidy -diff
step race race
if [ ${#failed[@]} -gt 0 ]; then
  printf 'check: FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "check: all passed"
