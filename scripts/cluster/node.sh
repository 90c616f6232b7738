#!/bin/bash
# Process 1 of a node of cluster.sh: sets up what the namespaces need, starts munged and the
# Slurm daemon, and stays to reap what they orphan (slurmstepd's are). SIGTERM: daemon first.
#   node.sh LAB NAME ADDRESS-SUFFIX DAEMON...
set -u
LAB=$1 NAME=$2 SUFFIX=$3
shift 3
. "$(dirname "$0")/conf.sh"
STATE=$LAB/state.$NAME
umask 022

daemon=
leave() {
  [ -n "$daemon" ] && kill -TERM "$daemon" && wait "$daemon"
  exit 0
}
trap leave TERM
has() { ip link show "$1" >/dev/null 2>&1; }
wait_for() { # what cmd...: 60 s, then the node gives up
  local what=$1 end=$((${EPOCHREALTIME/./} + 60000000)); shift
  until "$@" 2>/dev/null; do
    if [ "${EPOCHREALTIME/./}" -ge "$end" ]; then
      echo "node $NAME: no $what after 60 s" >&2
      exit 1
    fi
    pause 0.05
  done
}

hostname "$NAME"
mount --bind "$LAB/hosts" /etc/hosts
mount --bind "$LAB/passwd" /etc/passwd
mount --bind "$LAB/group" /etc/group
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lab/cgroup /run/munge /run/lock
# /sys still shows the devices of the machine's own network; a fresh one shows ours, but lacks
# the cgroups that slurmd wants to see.
mount --rbind /sys/fs/cgroup /run/lab/cgroup &&
  mount -t sysfs sysfs /sys &&
  mount --move /run/lab/cgroup /sys/fs/cgroup
ip link set lo up

if [ "$NAME" = ctl ]; then
  # Fixed MACs: else a bridge takes the lowest of its ports', which changes as nodes join, and a
  # node that has resolved the controller already talks into the void for seconds.
  i=1
  for net in "br-eth $NET_ETH" "br-ib $NET_IB"; do
    ip link add "${net% *}" address "02:46:53:54:00:0$i" type bridge
    ip addr add "${net#* }.$SUFFIX/24" dev "${net% *}"
    ip link set "${net% *}" up
    i=$((i + 1))
  done
  : >"$STATE/bridge"
else
  wait_for "cable" has ib0
  ip addr add "$NET_ETH.$SUFFIX/24" dev eth0
  ip addr add "$NET_IB.$SUFFIX/24" dev ib0
  ip link set eth0 up
  ip link set ib0 up
fi

# --force only where the directories above belong to nobody known here (user namespace).
force=; [ "$(id -u)" = 0 ] || force=--force
munged -F $force --key-file="$LAB/munge.key" --socket="$MUNGE_SOCKET" --pid-file=/run/lab/munged.pid \
  --log-file="$LAB/log/munged-$NAME.log" --seed-file="/run/lab/munged.seed" --num-threads=2 </dev/null &
ln -s "$MUNGE_SOCKET" /run/munge/munge.socket.2
wait_for "munge" munge -n -S "$MUNGE_SOCKET" -o /dev/null

if [ "$NAME" != ctl ]; then
  # slurmd that finds no controller tries again only after a second; a first SYN lost while the
  # bridge's port comes up costs 1 s and then 2 s. So probe with short patience first.
  wait_for "slurmctld" timeout 0.5 bash -c "exec 3<>/dev/tcp/$NET_ETH.254/6817"
fi
"$@" </dev/null >>"$LAB/log/$NAME.out" 2>&1 &
daemon=$!
: >"$STATE/ready"
# The daemon's own end does not end the node: a job on it may live on, as on a real one.
while :; do
  wait
  sleep 3600 &
  wait $!
done
