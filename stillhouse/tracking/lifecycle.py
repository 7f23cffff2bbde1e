"""Runs in MLflow whose process is gone: dead ones are ended, those of a flow run that goes on are taken over.

MLflow shows a run as RUNNING until somebody ends it. A process holds the lock of a file while it lives, and its runs
name that file: the system releases the lock however the process ends, and shows it to every process of the machine,
whatever its PID namespace and its clock. A run that waits for a person without a process is SCHEDULED.
"""

import atexit
import fcntl
import os
import socket
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from stillhouse.store.private import private_file, private_folder
from stillhouse.tracking.fallback import FALLBACK_FILE
from stillhouse.tracking.metadata import FLOW_RUN_TAG, HOST_TAG, PARENT_TAG
from stillhouse.tracking.records import SENDERS

LOCK_TAG: Final = "stillhouse.lock"


@cache
def lock_tag(store_root: Path) -> dict[str, str]:
    """Return the tag by which others see whether this process lives; none where the file system has no locks."""
    path = store_root.absolute() / "tracking-locks" / f"{os.getpid()}-{uuid4().hex}"
    try:
        private_folder(path.parent)
        private_file(path)
        # Left open: the lock lasts as long as the process.
        fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return {}
    atexit.register(_forget, path)
    return {LOCK_TAG: str(path)}


def _forget(lock: Path) -> None:
    # A run whose end MLflow did not take looks alive, and needs the file.
    if not (lock.parents[1] / FALLBACK_FILE).exists():
        lock.unlink(missing_ok=True)


def _is_alive(tags: Mapping[str, str]) -> bool | None:
    """Return whether the process of a run lives; None where that cannot be seen from here.

    Locks of a network file system may be those of one host alone.
    """
    if tags.get(HOST_TAG) != socket.gethostname():
        return None
    try:
        with Path(tags[LOCK_TAG]).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (KeyError, OSError):
        return None
    return False


def end_stale_runs(client: Any, experiment_id: str, ended: Callable[[], Mapping[str, str]]) -> dict[str, str]:
    """End RUNNING runs of dead processes of this host and return their states by id.

    Killed ones become KILLED; those that `ended` while MLflow was unreachable get their final state. Runs whose process
    cannot be seen from here are left alone.
    """
    running = _search(client, experiment_id, "attributes.status = 'RUNNING'")
    stale = [run_id for run_id, run in running.items() if _is_alive(run.data.tags) is False]
    known = ended() if stale else {}
    states = {run_id: known.get(run_id, "KILLED") for run_id in stale}
    for run_id, state in states.items():
        client.set_terminated(run_id, state)
    for file in {running[run_id].data.tags[LOCK_TAG] for run_id in stale}:
        Path(file).unlink(missing_ok=True)
    return states


def end_orphaned_runs(
    client: Any, experiment_id: str, is_over: Callable[[str], bool], *, suspended: bool = False
) -> list[str]:
    """Set RUNNING runs, or suspended ones, whose flow run is over to KILLED and return their ids.

    Of the RUNNING ones those whose process cannot be seen from here: a killed container was a host of its own.
    """
    status = "SCHEDULED" if suspended else "RUNNING"
    found = _search(client, experiment_id, f"attributes.status = '{status}'")
    runs = {run_id: run.data.tags for run_id, run in found.items() if suspended or _is_alive(run.data.tags) is None}
    flow_runs = {tags[FLOW_RUN_TAG] for tags in runs.values() if FLOW_RUN_TAG in tags}
    over = {flow_run for flow_run in flow_runs if is_over(flow_run)}
    killed = [run_id for run_id, tags in runs.items() if tags.get(FLOW_RUN_TAG) in over]
    for run_id in killed:
        client.set_terminated(run_id, "KILLED")
    return killed


def _search(client: Any, experiment_id: str, condition: str) -> dict[str, Any]:
    """Return an experiment's runs by id, the newest first."""
    return {run.info.run_id: run for run in client.search_runs([experiment_id], filter_string=condition)}


def continue_run(client: Any, experiment_id: str, tags: Mapping[str, str], run_id: str | None) -> str | None:
    """Set a run that is not under way to RUNNING in the process that `tags` name; return its id, None if there is none.

    It is the run `run_id`, or without parent the newest unfinished one of the flow run in `tags`: one that was
    suspended, failed or was killed goes on with all stages of all its attempts below.
    """
    condition = f"attributes.run_id = '{run_id}'"
    if PARENT_TAG not in tags:
        condition = f"tags.`{FLOW_RUN_TAG}` = '{tags.get(FLOW_RUN_TAG)}' and attributes.status != 'FINISHED'"
    for found, run in _search(client, experiment_id, condition).items():
        is_under_way = run.info.status == "RUNNING" and _is_alive(run.data.tags)
        if not is_under_way and (PARENT_TAG in run.data.tags) == (PARENT_TAG in tags):
            # Before the status: a RUNNING run with the tags of a dead process would look stale.
            SENDERS["tags"](client, found, {"tags": tags})
            client.update_run(found, "RUNNING")
            return found
    return None
