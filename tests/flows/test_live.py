"""Rollouts on the flow run's page, on a real Prefect server."""

from pathlib import Path
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.runtime import flow_run

from stillhouse.config import TrackingConfig
from stillhouse.progress.state import RolloutProgress
from stillhouse.tracking import start_run
from tasks.run.progress_artifact import ProgressArtifact


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
