#!/bin/bash
# SLURM: sbatch slurm.sh, from a folder in which .venv has your project and its tests' packages.
#SBATCH --job-name=ddp-tests
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --time=00:30:00
#SBATCH --output=ddp-tests-%j.log
# One task, which is pytest; it starts the ranks. Two minutes before the time is over pytest is
# interrupted, and has these to end its ranks and to write what it knows.
#SBATCH --signal=INT@120
set -euo pipefail

# That of many clusters is too long for the sockets of DataLoader workers.
export TMPDIR=/tmp
PATH="$PWD/.venv/bin:$PATH"
reports="reports/$SLURM_JOB_ID"

srun python -m pytest_ddp doctor
status=0
srun python -m pytest --ddp-timeout=300 --timeout=300 \
  --junitxml="$reports/junit.xml" \
  --ddp-diagnosis="$reports/diagnoses" --ddp-trace="$reports/traces" || status=$?
python -m pytest_ddp summary "$reports" > "$reports/summary.md" || status=$((status ? status : 1))
exit "$status"
