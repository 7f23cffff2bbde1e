"""Reuse of results: cache keys, Prefect's records of results, the journal of paid answers."""
