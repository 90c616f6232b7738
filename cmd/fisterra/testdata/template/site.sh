#!/bin/bash
# Written by "fisterra template slurm".
#SBATCH --job-name=digits
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=6
#SBATCH --account=phys.42
#SBATCH --constraint=haswell&ib
#SBATCH --output=digits-%j.out
#SBATCH --error=digits-%j.err
#SBATCH --open-mode=append
#SBATCH --no-requeue

echo "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0}, on $SLURM_JOB_NODELIST, $(date '+%F %T')"
export SLURM_EXPORT_ENV=ALL # the tasks have this shell's environment, whatever sbatch --export says

module load gcc/12.2 || { echo 'module gcc/12.2 cannot be loaded' >&2; exit 1; }
module load openmpi/4.1 || { echo 'module openmpi/4.1 cannot be loaded' >&2; exit 1; }

# Memory per CPU in MB: the job's own, else the partition's default, else the smallest even share of a node,
# and no more than the job holds.
per_cpu=$SLURM_MEM_PER_CPU
if [ -z "$per_cpu" ]; then
  per_cpu=$(scontrol show partition "$SLURM_JOB_PARTITION" | sed -n 's/.*DefMemPerCPU=\([0-9][0-9]*\).*/\1/p')
fi
if [ -z "$per_cpu" ]; then
  per_cpu=$(sinfo -h -N -p "$SLURM_JOB_PARTITION" -n "$SLURM_JOB_NODELIST" -o '%m/%c' |
    awk -F/ '$2 > 0 { share = int($1 / $2); if (least == "" || share < least) least = share } END { print least }')
fi
if [ "${SLURM_MEM_PER_NODE:-0}" -gt 0 ]; then
  held=$((SLURM_MEM_PER_NODE / SLURM_CPUS_ON_NODE))
  if [ "${per_cpu:-$held}" -ge "$held" ]; then per_cpu=$held; fi
fi
memory=()
if [ -n "$per_cpu" ]; then
  memory=("--mem-per-cpu=$per_cpu")
  echo "memory of a task: $((per_cpu * 6)) MB"
fi

# The shell outlives a TERM, so that the tasks can save and the end is reported. A lost task
# ends the others after 120 s, should they not notice it.
trap 'echo "job $SLURM_JOB_ID: signal TERM, $(date +%T)"' TERM
srun --kill-on-bad-exit=0 --wait=120 --cpus-per-task=6 "${memory[@]}" /opt/fisterra train --transport mpi --infiniband
code=$?
echo "job $SLURM_JOB_ID: the tasks ended with code $code, $(date '+%F %T')"
exit "$code"
