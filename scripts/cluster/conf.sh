# Names, addresses and configuration of the laboratory's cluster; sourced by cluster.sh and
# by node.sh. Each line of slurm.conf that differs from a real site says why.
PREFIX=c71                           # c7101, c7102, ...
NET_ETH=10.77.0
NET_IB=172.28.71                     # cesga-ft2: c7101 -> 172.28.71.1
MUNGE_SOCKET=/run/lab/munge.socket   # Slurm's way to munged, also while the default one is hidden

nodename() { printf '%s%02d\n' "$PREFIX" $(($1 + 1)); }

pause() { # seconds; `sleep` would be a process each time, which is what a busy machine has too many of
  [ -n "${NEVER:-}" ] || exec {NEVER}<> <(:)   # a pipe in which nothing comes
  read -rt "$1" -u "$NEVER" _ || :
}

write_conf() { # nodes cpus -> $LAB/{slurm.conf,hosts,passwd,group}, one directory per node
  local n=$1 cpus=$2 me i name
  me=$(id -un)
  {
    echo "127.0.0.1 localhost"
    echo "$NET_ETH.254 ctl"
    for ((i = 0; i < n; i++)); do
      echo "$NET_ETH.$((i + 1)) $(nodename "$i")"
      echo "$NET_IB.$((i + 1)) $(nodename "$i")-ib"
    done
  } >"$LAB/hosts"
  cp /etc/passwd /etc/group "$LAB/"
  if [ "$(id -u)" = 0 ]; then
    for i in 1 2; do
      echo "user$i:x:2000$i:2000$i::$LAB/home/user$i:/bin/bash" >>"$LAB/passwd"
      echo "user$i:x:2000$i:" >>"$LAB/group"
      mkdir -p "$LAB/home/user$i"
      chown "2000$i:2000$i" "$LAB/home/user$i"
      chmod 700 "$LAB/home/user$i"
    done
  fi
  for ((i = 0; i < n; i++)); do
    name=$(nodename "$i")
    mkdir -p "$LAB/state.$name"/{spool,tmp}
    chmod 1777 "$LAB/state.$name/tmp"
  done
  cat >"$LAB/slurm.conf" <<C
ClusterName=fisterra-lab
SlurmctldHost=ctl($NET_ETH.254)
SlurmctldPort=6817
SlurmdPort=6818
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential has expired: 120 s by default. A step whose launch takes longer than that
# on a busy machine is refused.
AuthInfo=socket=$MUNGE_SOCKET,cred_expire=30
SlurmctldPidFile=$LAB/state.ctl/slurmctld.pid
SlurmdPidFile=$LAB/state.%n/slurmd.pid
SlurmctldLogFile=$LAB/log/slurmctld.log
SlurmdLogFile=$LAB/log/slurmd-%n.log
StateSaveLocation=$LAB/ctld
SlurmdSpoolDir=$LAB/state.%n/spool
# Per node: mpi/pmix makes a directory here whose name does not hold the node's.
TmpFS=$LAB/state.%n/tmp
SlurmctldDebug=info
SlurmdDebug=info
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
# No binding: the nodes have more cpus than the machine.
TaskPlugin=task/none
SwitchType=switch/none
SlurmdParameters=config_overrides
MpiDefault=none
MpiParams=ports=18000-18999
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,sched_interval=2,bf_interval=1,bf_continue
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=20
SlurmctldTimeout=20
KillWait=30
UnkillableStepTimeout=20
InactiveLimit=0
MinJobAge=3600
JobRequeue=1
PropagateResourceLimits=NONE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc=$LAB/log/jobcomp.txt
C
  for ((i = 0; i < n; i++)); do
    echo "NodeName=$(nodename "$i") NodeAddr=$NET_ETH.$((i + 1)) CPUs=$cpus RealMemory=1000 State=UNKNOWN"
  done >>"$LAB/slurm.conf"
  # main preempts low (requeue after KillWait); shared lets four jobs have the same cpus.
  cat >>"$LAB/slurm.conf" <<C
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=shared Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF OverSubscribe=FORCE:4
${FISTERRA_LAB_CONF:-}
C
}
