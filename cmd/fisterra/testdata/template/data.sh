#!/bin/bash
# Written by "fisterra template slurm".
#SBATCH --job-name=fisterra
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --output=fisterra-%j.log
#SBATCH --open-mode=append
#SBATCH --no-requeue

echo "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0}, on $SLURM_JOB_NODELIST, $(date '+%F %T')"
if [ -n "$SLURM_ARRAY_TASK_ID" ] && scontrol show job "$SLURM_JOB_ID" | grep -q ArrayTaskId=; then
  echo "job $SLURM_JOB_ID: this script is for one run; give --array to fisterra template slurm, not to sbatch" >&2
  exit 1
fi
export SLURM_EXPORT_ENV=ALL # the tasks have this shell's environment, whatever sbatch --export says

mkdir -p -- state || exit 1

# The shell outlives a TERM, so that the tasks can save and the end is reported. A lost task
# does not end the others: the program decides whether it can go on.
trap 'echo "job $SLURM_JOB_ID: signal TERM, $(date +%T)"' TERM
srun --kill-on-bad-exit=0 --wait=0 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} fisterra train --checkpoint=state --data /not/here --checkpoint-every 100 --aggregate 2
code=$?
echo "job $SLURM_JOB_ID: the tasks ended with code $code, $(date '+%F %T')"
exit "$code"
