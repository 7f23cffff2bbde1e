"""Runs that wait for a person while no process of theirs is alive; MLflow calls them SCHEDULED.

They are found by the flow run they belong to, which stays the same when it goes on in another process.
"""

from collections.abc import Callable, Mapping
from typing import Any

from stillhouse.tracking.origin import FLOW_RUN_TAG


def resume_suspended_run(client: Any, experiment_id: str, tags: Mapping[str, str]) -> str | None:
    """The run that a flow run left behind when it was suspended, RUNNING again; None where there is none.

    Args:
        client: an `MlflowClient`.
        experiment_id: where to look.
        tags: of the process that goes on; they name the flow run.
    """
    from mlflow.entities import RunTag

    if FLOW_RUN_TAG not in tags:
        return None
    run_id = next(iter(_suspended(client, experiment_id, tags[FLOW_RUN_TAG])), None)
    if run_id is not None:
        # Before the status: a RUNNING run with the tags of a process that is gone looks as if it was left open.
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
        client.update_run(run_id, "RUNNING")
    return run_id


def end_suspended_runs(client: Any, experiment_id: str, is_over: Callable[[str], bool]) -> None:
    """Sets to KILLED the suspended runs whose flow run does not go on.

    Args:
        client: an `MlflowClient`.
        experiment_id: where to look.
        is_over: tells of the id of a flow run whether it has ended or is gone.
    """
    for run_id, flow_run_id in _suspended(client, experiment_id).items():
        if is_over(flow_run_id):
            client.set_terminated(run_id, "KILLED")


def _suspended(client: Any, experiment_id: str, flow_run_id: str | None = None) -> dict[str, str]:
    """Flow runs by the ids of their suspended runs."""
    of_one = "" if flow_run_id is None else f" and tags.`{FLOW_RUN_TAG}` = '{flow_run_id}'"
    found = client.search_runs([experiment_id], filter_string=f"attributes.status = 'SCHEDULED'{of_one}")
    return {run.info.run_id: run.data.tags[FLOW_RUN_TAG] for run in found if FLOW_RUN_TAG in run.data.tags}
