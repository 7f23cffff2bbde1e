"""Who started a run, where, from which code: tags that find a run's process and its source again."""

import getpass
import os
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

FLOW_RUN_TAG = "prefect.flow_run_id"
HOST_TAG = "stillhouse.host"
PID_TAG = "stillhouse.pid"
PROCESS_STARTED_TAG = "stillhouse.process_started"
"""When the process started, in seconds since the epoch: tells it from a later one with the same id."""


@cache
def origin_tags() -> dict[str, str]:
    """Tags of this process: user, source, commit and version as MLflow names them, host, process id."""
    process = psutil.Process()
    tags = {
        "mlflow.user": _user(),
        "mlflow.source.name": Path(sys.argv[0]).name or "python",
        "mlflow.source.type": "LOCAL",
        HOST_TAG: socket.gethostname(),
        PID_TAG: str(process.pid),
        PROCESS_STARTED_TAG: f"{process.create_time():.2f}",
    }
    with suppress(PackageNotFoundError):  # a checkout that is not installed; its commit tells
        tags["stillhouse.version"] = version("stillhouse")
    commit = _commit()
    if commit is not None:
        sha, _, dirty = commit.partition("-")
        tags["mlflow.source.git.commit"] = sha
        tags["git.sha"] = sha
        tags["git.dirty"] = "true" if dirty else "false"
    return tags


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())  # a container's user may have no name


def _commit() -> str | None:
    """`<sha>` or `<sha>-dirty` of the repository that tracks this file; None for an installed copy."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    try:
        # A virtual environment may lie inside somebody else's repository.
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], check=True, capture_output=True, timeout=10)
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            check=True,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
