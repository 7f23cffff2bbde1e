"""Prefect itself, on a real server: what it tries again, what it knows of flow runs, what their pages show."""

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.runtime import flow_run

from stillhouse.config import TrackingConfig
from stillhouse.errors import FailureBudgetExceeded, StillhouseError, TrainingKilled
from stillhouse.progress.run_state import Bar
from stillhouse.progress.state import RolloutProgress
from stillhouse.tracking import start_run
from tasks.run.prefect_api import has_ended
from tasks.run.progress_artifact import ProgressArtifacts
from tasks.run.stage import CACHED_STAGE

AT_ONCE = {**CACHED_STAGE, "retry_delay_seconds": 0, "persist_result": False}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("error", "num_calls"),
    [
        (FailureBudgetExceeded("too many"), 1),
        (StillhouseError("explained"), 1),
        (TrainingKilled("out of memory"), 3),
        (OSError("the node went away"), 3),
    ],
)
def test_crashes_are_tried_again_and_explained_failures_are_not(kind: str, error: Exception, num_calls: int) -> None:
    calls = 0

    def stage(key: str) -> None:
        nonlocal calls
        calls += 1
        raise error

    async def async_stage(key: str) -> None:
        stage(key)

    @flow
    def run() -> None:
        if kind == "sync":
            task(stage, **AT_ONCE)("some/key")
        else:
            asyncio.run(task(async_stage, **AT_ONCE)("some/key"))

    with pytest.raises(type(error)):
        run()
    assert calls == num_calls


def test_a_flow_run_has_ended_once_it_is_over_and_an_unknown_one_has_not() -> None:
    @flow
    def watched() -> tuple[str, bool]:
        return str(flow_run.id), has_ended(str(flow_run.id))

    run_id, meanwhile = watched()
    assert not meanwhile
    assert has_ended(run_id)
    assert not has_ended(str(uuid4()))


def test_the_flow_runs_page_shows_how_far_each_stage_is_that_takes_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = start_run(TrackingConfig(enabled=False), tmp_path, "generate")

    @flow
    def watched() -> str:
        sampled = RolloutProgress(done=4, total=8, limit=3, limit_reason="a | b")
        bars = {
            "rollouts": Bar(4, 8, 6.0, rollouts=sampled),
            "on_policy": Bar(3, 12, 66.0, {"teacher_kl": 0.25, "tokens_per_s": 512.0, "checkpoint": 2, "eta_s": 90.0}),
            "labels": Bar(8, 8, 0.01),
        }
        with ProgressArtifacts(record, lambda: bars, every_s=0.05):
            pass
        return str(flow_run.id)

    run_id = watched()
    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(run_id)]))
        shown = {str(artifact.key): artifact for artifact in client.read_artifacts(artifact_filter=wanted)}
    assert {key: (artifact.type, artifact.data) for key, artifact in shown.items()} == {
        "rollouts": ("progress", 50.0),
        "on-policy": ("progress", 25.0),
    }
    assert "| done | 4/8 |" in str(shown["rollouts"].description)
    assert "| reason | a \\| b |" in str(shown["rollouts"].description)
    figures = "teacher kl 0.25, 512 tokens/s, checkpoint 2, 2 min left"
    assert figures in str(shown["on-policy"].description)
    # Those that go on have a line once a minute.
    told = [record.getMessage() for record in caplog.records if record.name == "stillhouse.progress"]
    assert told == [f"on_policy: 3/12; {figures}"]
