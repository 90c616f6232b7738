#!/bin/bash
# Written by "fisterra template slurm".
#SBATCH --job-name=fisterra
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --array=0-3%2
#SBATCH --output=fisterra-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --no-requeue

echo "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0}, on $SLURM_JOB_NODELIST, $(date '+%F %T')"
export SLURM_EXPORT_ENV=ALL # the tasks have this shell's environment, whatever sbatch --export says

mkdir -p -- runs/"$SLURM_ARRAY_TASK_ID" || exit 1

# The shell outlives a TERM, so that the tasks can save and the end is reported. A lost task
# ends the others after 120 s, should they not notice it.
trap 'echo "job $SLURM_JOB_ID: signal TERM, $(date +%T)"' TERM
srun --kill-on-bad-exit=0 --wait=120 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} fisterra train --checkpoint=runs/"$SLURM_ARRAY_TASK_ID" --out=results/"$SLURM_ARRAY_TASK_ID"
code=$?
echo "job $SLURM_JOB_ID: the tasks ended with code $code, $(date '+%F %T')"
exit "$code"
