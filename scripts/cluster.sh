#!/bin/bash
# A real Slurm of several nodes on one machine. Every node is a set of namespaces of its own
# (network, host name, processes, mounts, IPC) with two networks, its own munged and slurmd:
# ranks on two nodes share no address, no /dev/shm, no process table. Nothing of it is in the
# host's network or /etc; `down` and the death of the owner leave no process, namespace or file.
#
#   cluster.sh up [NODES [CPUS]]       default 4 4; returns when every node is idle
#   cluster.sh exec CMD...             run CMD on the login and controller node, ctl
#   cluster.sh as USER CMD...          the same as user1 or user2, two ordinary users (root only)
#   cluster.sh on NODE CMD...          run CMD inside a node (its name or index, or ctl)
#   cluster.sh crash NODE              power off: silence first, then every process gone
#   cluster.sh boot NODE               power on; returns when slurmd is registered
#   cluster.sh unplug NODE [NET]       pull the cables: eth0, ib0 or (default) both
#   cluster.sh plug NODE [NET]         and put them in again
#   cluster.sh rate RATE               what a node sends at most, through each cable and to itself, such
#                                      as 20mbit; until it is booted anew
#   cluster.sh munge on|off            show or hide munge's default socket on all nodes (Slurm keeps its own)
#   cluster.sh status                  directory, processes, state of the nodes
#   cluster.sh logs [LINES]            the ends of the daemons' logs
#   cluster.sh down                    stop everything, remove the directory
#   cluster.sh userns CMD...           without root: run CMD where the other commands work
#
# Nodes are c7101, c7102, ...: eth0 has 10.77.0.1, .2, ... and ib0 172.28.71.1, .2, ... as
# the address rule cesga-ft2 derives from the names. ctl has .254 in both.
#
# FISTERRA_LAB        directory of the cluster, new or empty; without it up makes one and links it
#                     as build/cluster
# FISTERRA_LAB_OWNER  pid: when this process ends, the cluster goes down
# FISTERRA_LAB_KEEP   not empty: down keeps the directory (logs)
# FISTERRA_LAB_CONF   further lines for slurm.conf; the last one for a key counts
set -u
export PATH=$PATH:/usr/sbin:/sbin   # where the daemons are, and not everybody looks
SELF=${BASH_SOURCE[0]}
[ ! -L "$SELF" ] || SELF=$(readlink -f "$SELF")
case $SELF in */*) HERE=${SELF%/*};; *) HERE=.;; esac
LINK=$HERE/../build/cluster
MARK=.fisterra-lab                   # in the directory of every cluster: down removes no other
. "$HERE/cluster/conf.sh"
ASKED=                               # the exit code, when a signal has asked up to end

die() { echo "cluster: $*" >&2; exit 1; }

# --- which process is which --------------------------------------------------------------
# $LAB/nodes/NAME holds "UNSHARE INIT": the pid of the `unshare` that owns the namespaces (its
# death kills them) and that of the init inside, as seen from out here.
names() { ls "$LAB/nodes"; }
node() { # name or index -> name
  [[ $1 =~ ^[0-9]+$ ]] && set -- "$(nodename "$1")"
  [ -d "$LAB/state.$1" ] || die "no node '$1' (have: $(cd "$LAB" && echo state.* | sed 's/state\.//g'))"
  echo "$1"
}
pids() { # name -> sets OWNER and INIT
  [ -s "$LAB/nodes/$1" ] || die "$1 is off"
  read -r OWNER INIT <"$LAB/nodes/$1"
}
alive() { # pid: it is there and no zombie
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null && [[ ${stat##*) } != Z* ]]
}
inside() { # name cmd...: in all its namespaces
  pids "$1"; shift
  SLURM_CONF=$LAB/slurm.conf nsenter -t "$INIT" -n -u -m -i -p --wd="$PWD" -- "$@"
}
# 'ip link ... netns PID' is looked up in the caller's pid namespace: enter ctl's network only.
bridge() { pids ctl; nsenter -t "$INIT" -n ip "$@"; }
end_if_asked() {
  local code=$ASKED
  ASKED=       # down waits, too
  [ -z "$code" ] || exit "$code"
}
until_ok() { # seconds cmd...: poll cheaply until it succeeds
  local end=$((${EPOCHREALTIME/./} + $1 * 1000000)); shift
  until "$@" 2>/dev/null; do
    end_if_asked
    [ "${EPOCHREALTIME/./}" -lt "$end" ] || return 1
    pause 0.05
  done
}

# --- starting ----------------------------------------------------------------------------
spawn() { # name address-suffix daemon...
  local name=$1 owner init
  mkdir -p "$LAB/state.$name"
  rm -f "$LAB/state.$name/ready"
  unshare -n -u -m -i -p -f --mount-proc --propagation private --kill-child \
    bash "$HERE/cluster/node.sh" "$LAB" "$@" </dev/null >>"$LAB/log/$name.init" 2>&1 &
  owner=$!
  disown "$owner"
  child() { init=; read -r init _ <"/proc/$owner/task/$owner/children"; [ -n "$init" ]; }
  until_ok 60 child || die "$name did not start: $(cat "$LAB/log/$name.init")"
  echo "$owner $init" >"$LAB/nodes/$name"
}
# A node's cards have the same addresses after each boot, as real ones: a neighbour that has renewed its entry within a second takes no
# other address for it, and would send to one that is gone until its probes have failed.
wire() { # index...: both cables of each node, in one go
  local i net
  for i in "$@"; do
    pids "$(nodename "$i")"
    for net in eth:01 ib:02; do
      local card=02:00:${net#*:}:00:00:$(printf %02x $((i + 1)))
      net=${net%:*}
      echo "link add $net$i type veth peer name ${net}0 address $card netns $INIT"
      echo "link set $net$i master br-$net up"
    done
  done >"$LAB/wires"
  bridge -batch "$LAB/wires" || die "cannot connect the nodes"
}
start_node() { spawn "$(nodename "$1")" $(($1 + 1)) slurmd -D -N "$(nodename "$1")" -f "$LAB/slurm.conf"; }
idle() { # count: that many nodes are idle
  pause 0.1   # a look is several processes
  [ "$(inside ctl sinfo -h -N -p main -t idle -o %N | sort -u | wc -l)" = "$1" ]
}

up() {
  local n=${1:-4} cpus=${2:-4} begin=${EPOCHREALTIME/./} i
  [[ $n =~ ^[1-9][0-9]?$ && $cpus =~ ^[1-9][0-9]*$ ]] || die "up NODES CPUS: want 1-99 nodes and at least 1 cpu, got '$n' '$cpus'"
  if [ -n "${FISTERRA_LAB:-}" ] && [ ! -e "$FISTERRA_LAB/$MARK" ] && [ -n "$(ls -A "$FISTERRA_LAB" 2>/dev/null)" ]; then
    die "$FISTERRA_LAB is not empty, and down would remove what is in it"
  fi
  for i in slurmctld slurmd srun munged ip unshare nsenter setpriv; do
    command -v "$i" >/dev/null || die "no $i here (scripts/install-parts.sh slurm)"
  done
  unshare -n true 2>/dev/null || die "may not make namespaces: run as root, or under '$0 userns'"
  if [ -n "${FISTERRA_LAB:-}" ]; then
    LAB=$FISTERRA_LAB
    [ ! -e "$LAB/nodes" ] || die "$LAB is up already"
    mkdir -p "$LAB"
  else
    [ ! -d "$LINK/" ] || die "$(readlink "$LINK") is up already (cluster.sh down)"
    LAB=$(mktemp -d -t fisterra-lab.XXXXXX)
    mkdir -p "$(dirname "$LINK")"
    ln -sfn "$LAB" "$LINK"
  fi
  LAB=$(readlink -f "$LAB")
  : >"$LAB/$MARK" || die "cannot write in $LAB"
  chmod 755 "$LAB"     # the two ordinary users read slurm.conf here
  umask 022
  trap '[ $? = 0 ] || { logs 20 >&2; down; }' EXIT
  # Without these EXIT sees the status of what was interrupted. They do not exit themselves: out of read that crashes bash 5.2.
  trap 'ASKED=129' HUP; trap 'ASKED=130' INT; trap 'ASKED=143' TERM
  mkdir -p "$LAB"/{nodes,log,ctld}
  write_conf "$n" "$cpus"
  (umask 077; head -c 128 /dev/urandom >"$LAB/munge.key")

  spawn ctl 254 slurmctld -D -c -f "$LAB/slurm.conf"
  for ((i = 0; i < n; i++)); do start_node "$i"; done
  until_ok 60 test -e "$LAB/state.ctl/bridge" || die "ctl has no bridge after 60 s"
  wire $(seq 0 $((n - 1)))
  until_ok 120 idle "$n" || die "not every node is idle after 120 s: $(inside ctl sinfo -h -N -o '%N %T %E')"
  if [ -n "${FISTERRA_LAB_OWNER:-}" ]; then
    watch "$FISTERRA_LAB_OWNER" </dev/null >/dev/null 2>&1 &
    echo $! >"$LAB/watch"
    disown
  fi
  end_if_asked
  trap - EXIT HUP INT TERM
  awk -v n="$n" -v c="$cpus" -v us=$((${EPOCHREALTIME/./} - begin)) -v lab="$LAB" \
    'BEGIN { printf "cluster: %d nodes with %d cpus up in %.2f s in %s\n", n, c, us / 1e6, lab }'
}

# Ends the cluster when its owner is gone, however that ended.
watch() {
  tail --pid="$1" -f /dev/null &
  trap 'kill $!; exit' TERM
  wait $!
  rm -f "$LAB/watch"
  down
}

# --- power and cables --------------------------------------------------------------------
index() { echo $((10#${1#"$PREFIX"} - 1)); }
links() { # node [net]: the names of its cables at the bridge
  local i; i=$(index "$1")
  case ${2:-both} in
    eth0) echo "eth$i";; ib0) echo "ib$i";; both) echo "eth$i ib$i";;
    *) die "no network '$2' (have: eth0 ib0)";;
  esac
}
cable() { # up|down node [net]
  local name cables link
  name=$(node "$2") || exit 1
  cables=$(links "$name" "${3:-both}") || exit 1
  for link in $cables; do bridge link set "$link" "$1" || die "cannot set $link $1"; done
}
crash() {
  local name link
  name=$(node "$1") || exit 1
  pids "$name"
  local owner=$OWNER
  # A killed process closes its sockets, which peers would see; a machine without power does not.
  for link in $(links "$name"); do bridge link del "$link"; done
  kill -KILL "$owner"          # unshare --kill-child: init, and with it the whole pid namespace
  until_ok 60 dead "$owner" || die "$name is still alive 60 s after SIGKILL"
  rm -f "$LAB/nodes/$name"
}
dead() { ! alive "$1"; }
boot() {
  local name i; name=$(node "$1") || exit 1
  [ ! -s "$LAB/nodes/$name" ] || die "$name is on"
  i=$(index "$name")
  start_node "$i"
  wire "$i"
  until_ok 120 registered "$name" || die "$name has not registered after 120 s"
}
# A node that Slurm has not missed yet counts as idle all along: its slurmd must answer, too.
registered() {
  pause 0.1   # as in idle
  [ -e "$LAB/state.$1/ready" ] && inside ctl timeout 1 bash -c "exec 3<>/dev/tcp/$1/6818" &&
    [ "$(inside ctl sinfo -h -n "$1" -N -p main -o %t)" = idle ]
}

rate() {
  local name link
  # A burst as large as a packet can be before it is cut into frames: it goes as a whole, and wakes its reader once.
  for name in $(names | grep -v '^ctl$'); do
    for link in eth0 ib0 lo; do
      inside "$name" tc qdisc replace dev "$link" root tbf rate "$1" burst 128kb limit 4mb || die "cannot set the rate $1 of $name's $link"
    done
  done
}
munge_socket() {
  local name
  for name in $(names); do
    case $1 in
      off) inside "$name" rm -f /run/munge/munge.socket.2;;
      on) inside "$name" ln -sfn "$MUNGE_SOCKET" /run/munge/munge.socket.2;;
      *) die "munge on|off, got '$1'";;
    esac
  done
}

# --- ending ------------------------------------------------------------------------------
# Nodes before their controller: a slurmd that cannot sign off takes seconds to stop.
stop() { # name...
  local name
  for name in "$@"; do
    [ -s "$LAB/nodes/$name" ] && pids "$name" && kill -TERM "$INIT" 2>/dev/null
  done
  until_ok 4 all_dead "$@" && return
  for name in "$@"; do
    [ -s "$LAB/nodes/$name" ] && pids "$name" && kill -KILL "$OWNER" 2>/dev/null
  done
  until_ok 60 all_dead "$@" || die "still alive after SIGKILL: $*"
}
all_dead() {
  local name
  for name in "$@"; do
    [ -s "$LAB/nodes/$name" ] || continue
    pids "$name"
    ! alive "$OWNER" && ! alive "$INIT" || return 1
  done
}
down() {
  if [ -s "$LAB/watch" ]; then kill "$(cat "$LAB/watch")" 2>/dev/null; fi
  if [ -d "$LAB/nodes" ]; then
    # shellcheck disable=SC2046
    stop $(names | grep -v '^ctl$')
    stop ctl
  fi
  [ "$(readlink -f "$LINK")" = "$LAB" ] && rm -f "$LINK"
  if [ -n "${FISTERRA_LAB_KEEP:-}" ]; then rm -rf "$LAB/nodes"; else rm -rf "$LAB"; fi
}

status() {
  local name
  echo "cluster: $LAB"
  for name in $(names); do pids "$name"; echo "$name unshare=$OWNER init=$INIT"; done
  inside ctl sinfo -N -l
}
logs() { tail -n "${1:-20}" "$LAB"/log/*; }

# -----------------------------------------------------------------------------------------
command=${1:-help}; [ $# -gt 0 ] && shift
need() { [ "$1" -ge "$2" ] || die "usage: $command $3"; }
case $command in
  up) up "$@"; exit;;
  # The current uid is mapped to itself: as root of the namespace the daemons would try, and fail,
  # to set supplementary groups. The namespace's end ends everything in it.
  userns) need $# 1 "CMD..."; exec unshare -U -c --keep-caps -m --fork --kill-child -- "$@";;
  help|-h|--help) sed -n '2,/^set -u/{/^#/s/^# \{0,1\}//p}' "$0"; exit;;
esac
LAB=$(readlink -f "${FISTERRA_LAB:-$LINK}") && [ -d "$LAB" ] || die "no cluster is up (cluster.sh up)"
[ -e "$LAB/$MARK" ] || die "$LAB is no cluster's directory (it has no $MARK)"
case $command in
  exec) need $# 1 "CMD..."; inside ctl "$@";;
  as) need $# 2 "USER CMD..."
    user=$1; shift
    inside ctl setpriv --reuid "$user" --regid "$user" --init-groups env HOME="$LAB/home/$user" USER="$user" "$@";;
  on) need $# 2 "NODE CMD..."
    name=$(node "$1") || exit 1; shift
    inside "$name" "$@";;
  crash) need $# 1 NODE; crash "$1";;
  boot) need $# 1 NODE; boot "$1";;
  unplug) need $# 1 "NODE [NET]"; cable down "$@";;
  plug) need $# 1 "NODE [NET]"; cable up "$@";;
  rate) need $# 1 RATE; rate "$1";;
  munge) need $# 1 "on|off"; munge_socket "$1";;
  status) status;;
  logs) logs "$@";;
  down) down;;
  *) die "unknown command '$command' (cluster.sh help)";;
esac
