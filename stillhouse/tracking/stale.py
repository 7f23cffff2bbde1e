"""Runs whose process is gone: MLflow shows them as running forever unless somebody ends them."""

import socket
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from stillhouse.tracking.origin import FLOW_RUN_TAG, HOST_TAG, PID_TAG, PROCESS_STARTED_TAG

_CLOCK_SLACK_S = 2.0
"""The system's clock may be set between two readings of one process's start."""


def end_stale_runs(client: Any, experiment_id: str, ended: Callable[[], Mapping[str, str]]) -> dict[str, str]:
    """Ends the experiment's RUNNING runs that a dead process of this host started; their states by id.

    One that was killed becomes KILLED, one that ended while MLflow was away becomes what it ended as. Runs of other
    hosts, and runs without our tags, are left alone.

    Args:
        client: an `MlflowClient`.
        experiment_id: where to look.
        ended: gives the states, by id, of runs that could not tell MLflow of their end.
    """
    runs = client.search_runs(
        [experiment_id], filter_string=f"attributes.status = 'RUNNING' and tags.`{HOST_TAG}` = '{_host()}'"
    )
    stale = [run.info.run_id for run in runs if not _is_alive(run.data.tags)]
    known = ended() if stale else {}
    states = {run_id: known.get(run_id, "KILLED") for run_id in stale}
    for run_id, state in states.items():
        client.set_terminated(run_id, state)
    return states


def end_orphaned_runs(client: Any, experiment_id: str, has_ended: Callable[[str], bool]) -> list[str]:
    """Sets to KILLED the experiment's RUNNING runs of other hosts whose flow run has ended; their ids.

    Nobody here can see whether their process is alive: a container that was killed was a host of its own.

    Args:
        client: an `MlflowClient`.
        experiment_id: where to look.
        has_ended: tells of the id of a flow run whether it is known to have ended.
    """
    runs = client.search_runs(
        [experiment_id], filter_string=f"attributes.status = 'RUNNING' and tags.`{HOST_TAG}` != '{_host()}'"
    )
    flow_runs = {run.info.run_id: run.data.tags.get(FLOW_RUN_TAG) for run in runs}
    over = {flow_run for flow_run in flow_runs.values() if flow_run is not None and has_ended(flow_run)}
    orphaned = [run_id for run_id, flow_run in flow_runs.items() if flow_run in over]
    for run_id in orphaned:
        client.set_terminated(run_id, "KILLED")
    return orphaned


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
