"""The Prefect tasks, one module a stage: cache keys, retries, artifacts, progress."""
