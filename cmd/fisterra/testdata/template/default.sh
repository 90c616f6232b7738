#!/bin/bash
# Written by "fisterra template slurm".
#SBATCH --job-name=fisterra
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --output=fisterra-%j.log
#SBATCH --open-mode=append
#SBATCH --no-requeue

echo "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0}, on $SLURM_JOB_NODELIST, $(date '+%F %T')"
export SLURM_EXPORT_ENV=ALL # the tasks have this shell's environment, whatever sbatch --export says

# The shell outlives a TERM, so that the tasks can save and the end is reported. A lost task
# ends the others after 120 s, should they not notice it.
trap 'echo "job $SLURM_JOB_ID: signal TERM, $(date +%T)"' TERM
srun --kill-on-bad-exit=0 --wait=120 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} fisterra train
code=$?
echo "job $SLURM_JOB_ID: the tasks ended with code $code, $(date '+%F %T')"
exit "$code"
