"""Prefect's server on this machine: its settings, login and the temporary server of a run."""
