import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import start_run
from stillhouse.tracking.fallback import Fallback, Outage
from stillhouse.tracking.lifecycle import end_orphaned_runs, end_stale_runs
from stillhouse.tracking.metadata import FLOW_RUN_TAG, HOST_TAG, PID_TAG, PROCESS_STARTED_TAG

_CHILD = """
import sys, time
from pathlib import Path
from stillhouse.config import TrackingConfig
from stillhouse.tracking import start_run
run = start_run(TrackingConfig(uri=sys.argv[1], experiment=sys.argv[2]), Path(sys.argv[3]), "distill")
print(run.run_id, flush=True)
time.sleep(600)
"""


def test_a_killed_process_leaves_a_run_that_the_next_start_ends(
    tracking: TrackingConfig, client, tmp_path: Path
) -> None:
    arguments = [sys.executable, "-c", _CHILD, str(tracking.uri), tracking.experiment, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        orphan = child.stdout.readline().strip()
        with start_run(tracking, tmp_path, "while the first lives"):
            assert client.get_run(orphan).info.status == "RUNNING"
        child.kill()
        child.wait()
        with start_run(tracking, tmp_path, "after it died") as run:
            assert client.get_run(orphan).info.status == "KILLED"
            assert client.get_run(orphan).info.end_time is not None
            assert client.get_run(run.run_id).info.status == "RUNNING"


def test_a_run_that_ended_while_mlflow_was_away_gets_the_state_it_ended_in(
    tracking: TrackingConfig, client, tmp_path: Path
) -> None:
    tags = {HOST_TAG: socket.gethostname(), PID_TAG: str(os.getpid()), PROCESS_STARTED_TAG: "1.0"}
    left = client.create_run(client.create_experiment(tracking.experiment), tags=tags).info.run_id
    # Whom nobody answered, wrote it down instead.
    away = Fallback(tmp_path, str(tracking.uri), Outage(lambda: 0.0))
    away.write({"run_id": left, "run": "sft"}, "status", {"status": "FINISHED"})
    away.write({"run_id": None, "run": "distill"}, "status", {"status": "FAILED"})
    with start_run(tracking, tmp_path, "the next"):
        assert client.get_run(left).info.status == "FINISHED"


def test_a_run_that_is_resumed_runs_in_this_process(tracking: TrackingConfig, client, tmp_path: Path) -> None:
    with start_run(tracking, tmp_path, "distill") as run:
        client.set_terminated(run.run_id, "KILLED")
        client.set_tag(run.run_id, PID_TAG, "1")
        run.resume()
        resumed = client.get_run(run.run_id)
        assert resumed.info.status == "RUNNING"
        assert resumed.data.tags[PID_TAG] == str(os.getpid())


HERE = {HOST_TAG: socket.gethostname()}


@pytest.fixture
def experiment(client, tracking: TrackingConfig) -> str:
    return client.create_experiment(tracking.experiment)


def states(client: Any, *run_ids: str) -> set[str]:
    return {client.get_run(run_id).info.status for run_id in run_ids}


def test_runs_of_other_hosts_reused_ids_and_foreign_runs_are_told_apart(client, experiment: str) -> None:
    reused, elsewhere, foreign = (
        client.create_run(experiment, tags=tags).info.run_id
        for tags in (
            {**HERE, PID_TAG: str(os.getpid()), PROCESS_STARTED_TAG: "1.0"},
            {HOST_TAG: "another", PID_TAG: "1", PROCESS_STARTED_TAG: "1.0"},
            {},
        )
    )
    assert end_stale_runs(client, experiment, dict) == {reused: "KILLED"}
    assert states(client, elsewhere, foreign) == {"RUNNING"}


def test_a_run_of_another_host_ends_once_its_flow_run_has(client, experiment: str) -> None:
    pod, crashed = {HOST_TAG: "pod"}, {FLOW_RUN_TAG: "crashed"}
    run_ids = [
        client.create_run(experiment, tags=tags).info.run_id
        for tags in (pod | crashed, pod | crashed, pod | {FLOW_RUN_TAG: "running"}, pod, HERE | crashed)
    ]
    ended = end_orphaned_runs(client, experiment, lambda flow_run: flow_run == "crashed")
    assert sorted(ended) == sorted(run_ids[:2])
    assert states(client, *run_ids[:2]) == {"KILLED"}
    assert states(client, *run_ids[2:]) == {"RUNNING"}


def _of(flow_run: str, **more: str) -> dict[str, str | None]:
    return {"prefect.flow_run_id": flow_run, **more}


def test_the_run_of_a_suspended_flow_run_goes_on_in_another_process(
    tracking: TrackingConfig, client, tmp_path: Path
) -> None:
    with start_run(tracking, tmp_path, "distill", tags=_of("one", place="here")) as run:
        run.log_metrics({"rows": 3.0})
        run.suspend()
    assert run.run_id is not None
    waiting = client.get_run(run.run_id)
    assert (waiting.info.status, waiting.info.end_time) == ("SCHEDULED", None)

    with start_run(tracking, tmp_path, "distill", tags=_of("two")) as other:
        assert other.run_id != run.run_id
        assert client.get_run(run.run_id).info.status == "SCHEDULED"
    with start_run(tracking, tmp_path, "distill", tags=_of("one", place="there")) as again:
        resumed = client.get_run(run.run_id)
        assert again.run_id == run.run_id
        assert resumed.info.status == "RUNNING"
        assert resumed.data.tags["place"] == "there"
        assert resumed.data.metrics == {"rows": 3.0}
    assert client.get_run(run.run_id).info.status == "FINISHED"
    with start_run(tracking, tmp_path, "distill", tags=_of("one")) as retried:
        assert retried.run_id != run.run_id


def test_a_suspended_run_whose_flow_run_is_over_is_ended(tracking: TrackingConfig, client, tmp_path: Path) -> None:
    suspended = {}
    for flow_run in ("cancelled", "waiting"):
        with start_run(tracking, tmp_path, "distill", tags=_of(flow_run)) as run:
            run.suspend()
            suspended[flow_run] = run.run_id
    with start_run(tracking, tmp_path, "distill", tags=_of("next")) as run:
        run.end_suspended(lambda flow_run: flow_run == "cancelled")
    status = {flow_run: client.get_run(run_id).info.status for flow_run, run_id in suspended.items()}
    assert status == {"cancelled": "KILLED", "waiting": "SCHEDULED"}
