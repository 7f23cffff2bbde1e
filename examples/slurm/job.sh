#!/bin/bash
#SBATCH --job-name=stillhouse
#SBATCH --partition=gpu
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@180
# Runs a command, such as `stillhouse sft config.yaml`, and goes back into the queue where the time was too short for it:
#
#     sbatch --wait examples/slurm/job.sh stillhouse sft config.yaml

told=
trap 'told=1; kill -TERM $(jobs -p)' TERM
"$@" &
command=$!
wait "$command"
code=$?
# The signal ends a wait; the command has yet to save its checkpoint.
while kill -0 "$command" 2>/dev/null; do
  wait "$command"
  code=$?
done
# Slurm itself sees to a job that it preempts or that was cancelled, which is then no longer RUNNING.
if [ -n "$told" ] && [ "$code" -ne 0 ] && [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
