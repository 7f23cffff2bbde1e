"""A run of another machine, brought from S3, for which moto's server answers."""

from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import InputError
from stillhouse.store import ArtifactStore
from stillhouse.store.fetch_runs import bring_run
from stillhouse.store.records import write_jsonl
from stillhouse.store.runs import RunRecord, find_run, write_run_record
from stillhouse.store.sharing import place
from stillhouse.types import Artifact

URL = "s3://bucket/runs"


@pytest.fixture
def rollouts(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """Of a run called `calm-fox` that another machine made; this one is in an empty folder."""
    store = ArtifactStore(URL, tmp_path / "there")

    def write(stage: str) -> Artifact:
        artifact = store.write(stage, "0" * 16, lambda folder: (write_jsonl(folder / "rows.jsonl", [{"a": 1}]), {}))
        store.share(artifact)
        return artifact

    made = {stage: [write(stage).uri] for stage in ("rollouts", "sft")}
    report = store.root / "reports" / "20260101-000000-distill"
    write_run_record(report, RunRecord("distill", "2026-01-01T00:00:00", None, None, "calm-fox", made))
    store.share_folder(report)
    artifact = write("rollouts")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "there").rename(tmp_path / "lost")
    return artifact


def test_a_run_is_found_with_the_artifacts_that_are_wanted(rollouts: Artifact, tmp_path: Path) -> None:
    root = bring_run(URL, "calm-fox", lambda stage: stage == "rollouts")
    assert root == tmp_path / "here" / "runs"
    found = find_run(root, "latest")
    [folder] = found.artifacts["rollouts"]
    assert Path(folder).is_relative_to(root)
    assert (Path(folder) / "rows.jsonl").read_bytes() == b'{"a":1}\n'
    assert not (root / "artifacts" / "sft").exists()


def test_an_artifact_that_the_storage_lost_is_told_of(rollouts: Artifact, s3: Any) -> None:
    s3.client().delete_object(Bucket="bucket", Key=f"runs/{place(rollouts)}/rows.jsonl")
    with pytest.raises(InputError, match="gone or damaged"):
        bring_run(URL, "calm-fox", lambda stage: True)


def test_a_folder_is_what_it_is(tmp_path: Path) -> None:
    assert bring_run(str(tmp_path / "runs"), "latest", lambda stage: True) == tmp_path / "runs"
