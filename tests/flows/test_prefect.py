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
from stillhouse.progress.state import RolloutProgress
from stillhouse.tracking import start_run
from tasks.run.prefect_api import has_ended
from tasks.run.progress_artifact import ProgressArtifact
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


def test_the_flow_runs_page_shows_how_far_rollouts_are_and_what_limits_them(tmp_path: Path) -> None:
    record = start_run(TrackingConfig(enabled=False), tmp_path, "generate")

    @flow
    def watched() -> str:
        with ProgressArtifact(record, every_s=0.05) as page:
            for done in range(1, 5):
                page.update_rollouts("rollouts", RolloutProgress(done=done, total=8, limit=3, limit_reason="a | b"))
        return str(flow_run.id)

    run_id = watched()
    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(run_id)]))
        (artifact,) = client.read_artifacts(artifact_filter=wanted)
    assert (artifact.key, artifact.type) == ("rollouts", "progress")
    assert artifact.data == 50.0
    assert artifact.description is not None
    assert "| done | 4/8 |" in artifact.description
    assert "| reason | a \\| b |" in artifact.description
