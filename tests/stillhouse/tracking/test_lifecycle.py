import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import start_run
from stillhouse.tracking.fallback import Fallback, Outage
from stillhouse.tracking.lifecycle import LOCK_TAG, end_orphaned_runs, end_stale_runs, lock_tag
from stillhouse.tracking.metadata import FLOW_RUN_TAG, HOST_TAG

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


IN_ANOTHER_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]
MAY_UNSHARE = (
    os.getuid() == 0
    and shutil.which("unshare") is not None
    and subprocess.run([*IN_ANOTHER_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
)


@pytest.mark.skipif(not MAY_UNSHARE, reason="another PID namespace needs root and unshare(1)")
def test_a_run_of_another_pid_namespace_with_the_same_host_name_goes_on_until_its_process_dies(
    tracking: TrackingConfig, client, tmp_path: Path
) -> None:
    arguments = [sys.executable, "-c", _CHILD, str(tracking.uri), tracking.experiment, str(tmp_path)]
    with subprocess.Popen([*IN_ANOTHER_NAMESPACE, *arguments], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        other = child.stdout.readline().strip()
        with start_run(tracking, tmp_path, "here"):
            assert states(client, other) == {"RUNNING"}
        # unshare(1) ends once its child is gone.
        for process in psutil.Process(child.pid).children():
            process.kill()
        child.wait()
        with start_run(tracking, tmp_path, "here, later"):
            assert states(client, other) == {"KILLED"}


@pytest.fixture
def unlocked(tmp_path: Path) -> dict[str, str | None]:
    """Return the tags of a process of this host that is gone."""
    (tmp_path / "lock").touch()
    return {HOST_TAG: socket.gethostname(), LOCK_TAG: str(tmp_path / "lock")}


def test_a_run_that_ended_while_mlflow_was_away_gets_the_state_it_ended_in(
    tracking: TrackingConfig, client, tmp_path: Path, unlocked
) -> None:
    left = client.create_run(client.create_experiment(tracking.experiment), tags=unlocked).info.run_id
    # Whom nobody answered, wrote it down instead.
    away = Fallback(tmp_path, str(tracking.uri), Outage(lambda: 0.0))
    away.write({"run_id": left, "run": "sft"}, "status", {"status": "FINISHED"})
    away.write({"run_id": None, "run": "distill"}, "status", {"status": "FAILED"})
    with start_run(tracking, tmp_path, "the next"):
        assert client.get_run(left).info.status == "FINISHED"
    assert not Path(unlocked[LOCK_TAG]).exists()


def test_a_stage_that_goes_on_does_so_below_the_run_that_goes_on(
    tracking: TrackingConfig, client, tmp_path: Path, unlocked
) -> None:
    with start_run(tracking, tmp_path, "distill") as first, start_run(tracking, tmp_path, "distill") as second:
        sft = start_run(tracking, tmp_path, "sft", parent_run_id=first.run_id, tags=unlocked)
        sft.finish("KILLED")
        again = start_run(tracking, tmp_path, "sft", parent_run_id=second.run_id, continues=sft.run_id)
        resumed = client.get_run(sft.run_id)
        assert again.run_id == sft.run_id
        assert resumed.info.status == "RUNNING"
        assert resumed.data.tags[LOCK_TAG] == lock_tag(tmp_path)[LOCK_TAG]
        assert resumed.data.tags["mlflow.parentRunId"] == second.run_id
        # As when MLflow was changed for another, or somebody deleted the run.
        client.delete_run(sft.run_id)
        for gone in (sft.run_id, "unknown"):
            anew = start_run(tracking, tmp_path, "sft", parent_run_id=second.run_id, continues=gone)
            assert anew.run_id not in (gone, None)


def test_a_stage_that_goes_on_while_mlflow_is_away_keeps_its_run(tmp_path: Path, closed_port: int, fallback_lines):
    away = TrackingConfig(uri=f"http://127.0.0.1:{closed_port}")
    run = start_run(away, tmp_path, "sft", parent_run_id="parent", continues="known")
    assert run.run_id == "known"
    assert [(line["kind"], line["run_id"]) for line in fallback_lines(tmp_path)] == [("tags", "known")]


HERE = {HOST_TAG: socket.gethostname()}


@pytest.fixture
def experiment(client, tracking: TrackingConfig) -> str:
    return client.create_experiment(tracking.experiment)


def states(client: Any, *run_ids: str) -> set[str]:
    return {client.get_run(run_id).info.status for run_id in run_ids}


def test_in_a_groups_store_the_lock_is_the_groups(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o2770)
    lock = Path(lock_tag(store)[LOCK_TAG])
    assert (lock.parent.stat().st_mode & 0o7777, lock.stat().st_mode & 0o7777) == (0o2770, 0o660)


def test_runs_that_cannot_be_seen_from_here_are_left_alone(client, experiment: str, tmp_path: Path, unlocked) -> None:
    dead, *others = (
        client.create_run(experiment, tags=tags).info.run_id
        for tags in (
            unlocked,
            {**HERE, **lock_tag(tmp_path)},
            {**unlocked, HOST_TAG: "another"},
            {**unlocked, LOCK_TAG: str(tmp_path / "of another mount")},
            HERE,
            {},
        )
    )
    assert end_stale_runs(client, experiment, dict) == {dead: "KILLED"}
    assert states(client, *others) == {"RUNNING"}


def test_a_run_that_cannot_be_seen_from_here_ends_once_its_flow_run_has(
    client, experiment: str, tmp_path: Path
) -> None:
    pod, crashed = {HOST_TAG: "pod"}, {FLOW_RUN_TAG: "crashed"}
    run_ids = [
        client.create_run(experiment, tags=tags).info.run_id
        for tags in (
            *(pod | crashed, HERE | crashed),
            *(pod | {FLOW_RUN_TAG: "running"}, pod, HERE | lock_tag(tmp_path) | crashed),
        )
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
    with start_run(tracking, tmp_path, "distill", tags=_of("one")) as anew:
        assert anew.run_id != run.run_id


def test_a_flow_run_that_is_tried_again_goes_on_in_its_run(tracking: TrackingConfig, client, tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="at fault"),
        start_run(tracking, tmp_path, "distill", tags=_of("one")) as failed,
        start_run(tracking, tmp_path, "sft", parent_run_id=failed.run_id, tags=_of("one")),
    ):
        raise ValueError("at fault")
    with start_run(tracking, tmp_path, "distill", tags=_of("one")) as retried:
        assert retried.run_id == failed.run_id
        assert states(client, retried.run_id) == {"RUNNING"}
        with start_run(tracking, tmp_path, "distill", tags=_of("one")) as beside:
            assert beside.run_id != retried.run_id
    assert states(client, retried.run_id) == {"FINISHED"}


def test_a_suspended_run_whose_flow_run_is_over_is_ended(tracking: TrackingConfig, client, tmp_path: Path) -> None:
    suspended = {}
    for flow_run in ("cancelled", "waiting"):
        with start_run(tracking, tmp_path, "distill", tags=_of(flow_run)) as run:
            run.suspend()
            suspended[flow_run] = run.run_id
    with start_run(tracking, tmp_path, "distill", tags=_of("next")) as run:
        run.end_orphaned(lambda flow_run: flow_run == "cancelled", suspended=True)
    status = {flow_run: client.get_run(run_id).info.status for flow_run, run_id in suspended.items()}
    assert status == {"cancelled": "KILLED", "waiting": "SCHEDULED"}
