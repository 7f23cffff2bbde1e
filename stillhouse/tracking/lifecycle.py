"""Runs in MLflow whose process is gone: dead ones are ended, suspended ones resumed.

MLflow shows a run as RUNNING until somebody ends it. A run that waits for a person without a process is SCHEDULED; it
is found by its flow run, which stays the same when it resumes in another process.
"""

import socket
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from stillhouse.tracking.metadata import FLOW_RUN_TAG, HOST_TAG, PID_TAG, PROCESS_STARTED_TAG
from stillhouse.tracking.records import SENDERS

_CLOCK_SLACK_S = 2.0
"""The system's clock may be set between two readings of one process's start."""


def end_stale_runs(client: Any, experiment_id: str, ended: Callable[[], Mapping[str, str]]) -> dict[str, str]:
    """End RUNNING runs of dead processes of this host and return their states by id.

    Killed ones become KILLED; those that `ended` while MLflow was unreachable get their final state. Runs of other
    hosts and runs without our tags are left alone.
    """
    running = _search(client, experiment_id, "RUNNING", f"tags.`{HOST_TAG}` = '{_host()}'")
    stale = [run_id for run_id, tags in running.items() if not _is_alive(tags)]
    known = ended() if stale else {}
    states = {run_id: known.get(run_id, "KILLED") for run_id in stale}
    for run_id, state in states.items():
        client.set_terminated(run_id, state)
    return states


def end_orphaned_runs(
    client: Any, experiment_id: str, is_over: Callable[[str], bool], *, suspended: bool = False
) -> list[str]:
    """Set RUNNING runs of other hosts, or suspended ones, whose flow run is over to KILLED and return their ids.

    Whether a process of another host lives cannot be seen from here: a killed container was a host of its own.
    """
    status, elsewhere = ("SCHEDULED", []) if suspended else ("RUNNING", [f"tags.`{HOST_TAG}` != '{_host()}'"])
    runs = _search(client, experiment_id, status, *elsewhere)
    flow_runs = {tags[FLOW_RUN_TAG] for tags in runs.values() if FLOW_RUN_TAG in tags}
    over = {flow_run for flow_run in flow_runs if is_over(flow_run)}
    killed = [run_id for run_id, tags in runs.items() if tags.get(FLOW_RUN_TAG) in over]
    for run_id in killed:
        client.set_terminated(run_id, "KILLED")
    return killed


def _search(client: Any, experiment_id: str, status: str, *conditions: str) -> dict[str, dict[str, str]]:
    """Return the tags of an experiment's runs by id."""
    condition = " and ".join([f"attributes.status = '{status}'", *conditions])
    return {run.info.run_id: run.data.tags for run in client.search_runs([experiment_id], filter_string=condition)}


def _host() -> str:
    return socket.gethostname().replace("'", "")


def _is_alive(tags: dict[str, str]) -> bool:
    try:
        pid, started = int(tags[PID_TAG]), float(tags[PROCESS_STARTED_TAG])
    except (KeyError, ValueError):
        return True
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - started) < _CLOCK_SLACK_S
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def resume_suspended_run(client: Any, experiment_id: str, tags: Mapping[str, str]) -> str | None:
    """Set the run of the suspended flow run that `tags` name to RUNNING and return its id; None if there is none."""
    if FLOW_RUN_TAG not in tags:
        return None
    condition = f"tags.`{FLOW_RUN_TAG}` = '{tags[FLOW_RUN_TAG]}'"
    run_id = next(iter(_search(client, experiment_id, "SCHEDULED", condition)), None)
    if run_id is not None:
        take_over(client, run_id, tags)
    return run_id


def take_over(client: Any, run_id: str, tags: Mapping[str, str]) -> None:
    """Set a run to RUNNING in the process that `tags` name."""
    # Before the status: a RUNNING run with the tags of a dead process would look stale.
    SENDERS["tags"](client, run_id, {"tags": tags})
    client.update_run(run_id, "RUNNING")
