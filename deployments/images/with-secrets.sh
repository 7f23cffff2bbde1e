#!/bin/sh
# Runs a command in which each file of /run/secrets is the environment variable of the file's name.
#
# Compose and Kubernetes hand secrets over as files, which `docker inspect` does not show; Prefect, MLflow and the
# clients of model providers read variables.
set -eu
for file in "${SECRETS_FOLDER:-/run/secrets}"/*; do
    if [ -f "$file" ]; then
        value=$(cat "$file")
        export "${file##*/}=$value"
    fi
done
exec "$@"
