#!/bin/bash
# Written by "fisterra template slurm".
#SBATCH --job-name=fisterra
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --mem-per-cpu=8192
#SBATCH --time=30
#SBATCH --partition=low
#SBATCH --output=fisterra-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=USR1@60
#SBATCH --requeue
#SBATCH --no-kill

echo "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0}, on $SLURM_JOB_NODELIST, $(date '+%F %T')"
if [ -n "$SLURM_ARRAY_TASK_ID" ] && scontrol show job "$SLURM_JOB_ID" | grep -q ArrayTaskId=; then
  echo "job $SLURM_JOB_ID: this script is for one run; give --array to fisterra template slurm, not to sbatch" >&2
  exit 1
fi
export SLURM_EXPORT_ENV=ALL # the tasks have this shell's environment, whatever sbatch --export says

mkdir -p -- /scratch/me/run || exit 1

# The shell outlives a TERM, so that the tasks can save and the end is reported. A lost task
# ends the others after 120 s, should they not notice it.
trap 'echo "job $SLURM_JOB_ID: signal TERM, $(date +%T)"' TERM
srun --kill-on-bad-exit=0 --wait=120 --mpi=pmi2 --no-kill ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} fisterra train --checkpoint=/scratch/me/run
code=$?
echo "job $SLURM_JOB_ID: the tasks ended with code $code, $(date '+%F %T')"
if [ "$code" -eq $((128 + $(kill -l USR1))) ]; then
  # Ended by the signal before the time limit: go on in another run.
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
