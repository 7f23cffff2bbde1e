"""A run of another machine, brought from S3, for which moto's server answers."""

from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import ConfigError, InputError
from stillhouse.store import ArtifactStore
from stillhouse.store.records import write_jsonl
from stillhouse.store.remote import artifact_prefix
from stillhouse.store.runs import (
    RUN_FILE,
    RunRecord,
    earlier_seconds,
    fetch_run,
    find_run,
    read_run_record,
    write_run_record,
)
from stillhouse.types import Artifact


def _write(root: Path, folder: str, letter: str, name: str) -> RunRecord:
    record = RunRecord("distill", f"{folder}T00:00:00", letter * 32, f"{letter * 8}-1234", name, {"rollouts": ["/r"]})
    write_run_record(root / "reports" / folder, record)
    return record


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, RunRecord]:
    (tmp_path / "reports" / "20260103-000000-of-before-records").mkdir(parents=True)
    return {
        "old": _write(tmp_path, "20260101-000000-distill", "a", "calm-otter"),
        "new": _write(tmp_path, "20260102-000000-generate", "b", "calm-otter"),
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("latest", "new"),
        ("a" * 32, "old"),
        ("aaaaaaaa-1234", "old"),
        ("20260101-000000-distill", "old"),
        ("calm-otter", "new"),
        ("bbbbbb", "new"),
        ("20260101", "old"),
    ],
)
def test_each_name_of_a_run_finds_it(name: str, expected: str, runs: dict[str, RunRecord], tmp_path: Path) -> None:
    assert find_run(tmp_path, name)[1] == runs[expected]


def test_the_latest_run_is_one_that_made_something_where_there_is_one(tmp_path: Path) -> None:
    begun = RunRecord("distill", "20260103T00:00:00", None, None, None, {})
    write_run_record(tmp_path / "reports" / "20260103-000000-distill", begun)
    assert find_run(tmp_path, "latest")[1] == begun
    made = _write(tmp_path, "20260101-000000-distill", "a", "calm-otter")
    assert find_run(tmp_path, "latest")[1] == made


NONE = r"20260102-000000-generate \(calm-otter\), 20260101"


@pytest.mark.parametrize(
    ("name", "problem"),
    [("absent", NONE), ("aaaaa", NONE), ("", NONE), ("2026010", "several runs")],
)
@pytest.mark.usefixtures("runs")
def test_an_unknown_or_ambiguous_name_is_refused_with_those_known(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        find_run(tmp_path, name)


@pytest.mark.parametrize("name", ["latest", "calm-otter"])
def test_a_store_without_runs_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No run has begun"):
        find_run(tmp_path, name)


@pytest.mark.parametrize("content", ["{", "[]", '{"flow": "distill"}'])
def test_a_record_that_is_none_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"run\.json"):
        read_run_record(path)


def test_a_store_that_was_moved_knows_where_its_artifacts_are(tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "artifacts" / "rollouts" / "0123").mkdir(parents=True)
    kept, gone = (str(old / "artifacts" / "rollouts" / key) for key in ("0123", "4567"))
    record = RunRecord("distill", "2026-01-01T00:00:00", None, None, "calm-fox", {"rollouts": [gone, kept]})
    write_run_record(old / "reports" / "20260101-000000-distill", record)
    old.rename(tmp_path / "new")
    _, found = find_run(tmp_path / "new", "calm-fox")
    assert found.artifacts["rollouts"] == [gone, str(tmp_path / "new" / "artifacts" / "rollouts" / "0123")]


def test_the_seconds_of_a_stage_come_from_the_newest_run_over_the_same_subject(tmp_path: Path) -> None:
    def write(folder: str, subject: str, **seconds: float) -> None:
        record = RunRecord("distill", "2026-01-01T00:00:00", None, None, None, {}, subject, seconds)
        write_run_record(tmp_path / "reports" / folder, record)

    write("1-distill-a", "a", rollouts=20.0, labels=2.0)
    write("2-distill-b", "a", rollouts=8.0)
    write("3-distill-c", "b", rollouts=99.0)
    write("4-generate-d", "a", rollouts=99.0)
    (tmp_path / "reports/5-distill-e").mkdir()
    (tmp_path / "reports/5-distill-e" / RUN_FILE).write_bytes(b"half a fi")
    assert earlier_seconds(tmp_path, "distill", "a") == {"rollouts": 8.0, "labels": 2.0}
    assert earlier_seconds(tmp_path / "nowhere", "distill", "a") == {}


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
    root = fetch_run(URL, "calm-fox", lambda stage: stage == "rollouts")
    assert root == tmp_path / "here" / "runs"
    _, found = find_run(root, "latest")
    [folder] = found.artifacts["rollouts"]
    assert Path(folder).is_relative_to(root)
    assert (Path(folder) / "rows.jsonl").read_bytes() == b'{"a":1}\n'
    assert not (root / "artifacts" / "sft").exists()


def test_an_artifact_that_the_storage_lost_is_told_of(rollouts: Artifact, s3: Any) -> None:
    s3.client().delete_object(Bucket="bucket", Key=f"runs/{artifact_prefix(rollouts)}/rows.jsonl")
    with pytest.raises(InputError, match="gone"):
        fetch_run(URL, "calm-fox", lambda stage: True)


def test_a_folder_is_what_it_is(tmp_path: Path) -> None:
    assert fetch_run(str(tmp_path / "runs"), "latest", lambda stage: True) == tmp_path / "runs"
