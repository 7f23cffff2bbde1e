#!/bin/bash
# Executes a flow run on a machine of SkyPilot's that is gone when this ends, however it ends.
set -u
cluster="stillhouse-${PREFECT__FLOW_RUN_ID:0:13}"

# `--down` alone leaves a machine up whose setup failed. Prefect kills this 30 seconds after a cancel: ask, and do not wait.
trap 'trap "" TERM INT; kill $(jobs -p) 2>/dev/null; sky down --yes --async "$cluster"' EXIT
trap 'exit 143' TERM INT

sky launch --yes --cluster "$cluster" --retry-until-up --down --idle-minutes-to-autostop 10 \
  --env PREFECT__FLOW_RUN_ID --env PREFECT_API_URL --env MLFLOW_TRACKING_URI \
  --secret PREFECT_API_AUTH_STRING --secret AWS_ACCESS_KEY_ID --secret AWS_SECRET_ACCESS_KEY \
  examples/skypilot/gpu.yaml &
wait $!
