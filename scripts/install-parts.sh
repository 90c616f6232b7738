#!/bin/bash
# Installs what the tests of Fisterra can use beyond Go itself: a Slurm with munge,
# two MPI libraries, PMIx, Gloo, and the tools that make network namespaces.
#
#   scripts/install-parts.sh [PART...]      parts: slurm mpi gloo build (default: all)
#
# Debian and its relatives, as root. Idempotent: what is there stays, and then nothing is
# fetched; an optional package that the release does not have is looked for each time. No daemon is started, nothing below /etc is changed by hand. FISTERRA_APT_LOG
# names the file that keeps apt's own output (default: printed only when apt fails).
set -euo pipefail

die() { echo "install-parts: $*" >&2; exit 1; }

declare -A parts=(
  [build]="gcc g++ libc6-dev make git ca-certificates"
  [slurm]="slurmd slurmctld slurm-client munge iproute2 util-linux procps"
  # libpmix-dev, not libpmix2: Slurm's mpi/pmix opens the unversioned link that only it has.
  [mpi]="openmpi-bin libopenmpi-dev mpich libmpich-dev libpmix-dev"
  [gloo]="libgloo-dev"
)
order=(build slurm mpi gloo)
optional=" libgloo-dev "     # not in every release: its absence is said, not an error

wanted=("$@"); [ $# -gt 0 ] || wanted=("${order[@]}")
packages=()
for part in "${wanted[@]}"; do
  [ -n "${parts[$part]:-}" ] || die "unknown part '$part' (want: ${order[*]})"
  read -ra names <<<"${parts[$part]}"
  packages+=("${names[@]}")
done

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
absent() { local p; for p in "$@"; do installed "$p" || echo "$p"; done; }

command -v apt-get >/dev/null || die "no apt-get here; install by hand: ${packages[*]}"
mapfile -t missing < <(absent "${packages[@]}")
if [ ${#missing[@]} -eq 0 ]; then
  echo "install-parts: all ${#packages[@]} packages are there (${wanted[*]})"
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  needed=()
  for p in "${missing[@]}"; do [[ $optional == *" $p "* ]] || needed+=("$p"); done
  [ ${#needed[@]} -eq 0 ] || die "needs root to install: ${needed[*]}"
  echo "install-parts: all but ${missing[*]}, for which root would look"
  exit 0
fi

log=${FISTERRA_APT_LOG:-$(mktemp -t fisterra-apt.XXXXXX)}
policy=/usr/sbin/policy-rc.d
made_policy=
finish() {
  local rc=$?
  if [ -n "$made_policy" ]; then rm -f "$policy"; fi
  if [ $rc -ne 0 ]; then tail -n 30 "$log" >&2 || true; fi
  if [ -z "${FISTERRA_APT_LOG:-}" ]; then rm -f "$log"; fi
}
trap finish EXIT

# Debian starts a daemon as soon as it is unpacked unless policy-rc.d says no.
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  made_policy=yes
fi

export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null >>"$log" 2>&1; }

apt update || die "apt-get update failed"
known=()
for p in "${missing[@]}"; do
  if apt-cache show "$p" >/dev/null 2>&1; then
    known+=("$p")
  elif [[ $optional == *" $p "* ]]; then
    echo "install-parts: this release has no $p; what uses it is left out"
  else
    die "no package '$p' in this release's archive"
  fi
done
if [ ${#known[@]} -gt 0 ]; then
  apt install --no-install-recommends "${known[@]}" || die "apt-get install failed: ${known[*]}"
  dpkg-query -W -f 'install-parts: installed ${Package} ${Version}\n' "${known[@]}"
fi
