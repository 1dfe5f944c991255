#!/usr/bin/env bash
# What the steps of buildkite.yml run. A file and not a command in the pipeline, which Buildkite
# would fill in with variables of the agent that reads it.
set -euo pipefail

python3 -m venv --clear .venv
PATH="$PWD/.venv/bin:$PATH"
if [[ -n ${NEEDS_GPUS:-} ]]; then
  # Without GPUs tests are skipped, and green. nvidia-smi is red.
  nvidia-smi -L
else
  python -m pip install torch --index-url https://download.pytorch.org/whl/cpu
fi
python -m pip install --editable '.[test]'
python -m pytest_ddp doctor

# Buildkite counts jobs from 0, and pytest-split groups from 1.
group=$((${BUILDKITE_PARALLEL_JOB:-0} + 1))
status=0
python -m pytest --splits="${BUILDKITE_PARALLEL_JOB_COUNT:-1}" --group="$group" \
  --ddp-timeout=120 --timeout=120 \
  --junitxml=reports/junit.xml \
  --ddp-diagnosis=reports/diagnoses --ddp-trace=reports/traces || status=$?

if ((status)); then
  python -m pytest_ddp summary reports --title "$BUILDKITE_LABEL, group $group" |
    buildkite-agent annotate --style error --context "$BUILDKITE_JOB_ID" || true
fi
exit "$status"
