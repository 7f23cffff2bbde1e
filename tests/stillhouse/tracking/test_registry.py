from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import TrackedRun, start_run
from stillhouse.tracking.registry import StudentVersion, download, find_registered, move_alias


@pytest.fixture
def run(tracking: TrackingConfig, tmp_path: Path) -> Iterator[TrackedRun]:
    """Yield a run that holds the files of a student."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "README.md").write_text("# A student\n")
    with start_run(tracking, tmp_path, "sft") as run:
        run.log_artifacts(folder, "student")
        yield run


@pytest.fixture
def name(tracking: TrackingConfig) -> str:
    """Return the name of the registered model, another for each test."""
    return tracking.experiment


@pytest.fixture
def student(run: TrackedRun) -> StudentVersion:
    return StudentVersion("aaaa", run.run_id, "student", {"method": "sft", "data": "d1"}, "SFT of a base")


def versions(client: Any, name: str) -> list[int]:
    return sorted(int(version.version) for version in client.search_model_versions(f"name = '{name}'"))


def test_a_student_becomes_a_version_whose_files_are_those_of_its_run(
    run: TrackedRun, student: StudentVersion, client, name: str
) -> None:
    assert run.register(name, "candidate", [student]) == ["1"]
    assert (
        run.pages.model(name, "1") == f"http://127.0.0.1:5000/#/models/{name}/versions/1?workflowType=machine_learning"
    )
    version = client.get_model_version_by_alias(name, "candidate")
    assert version.tags == {"method": "sft", "data": "d1", "student": "aaaa"}
    assert (version.run_id, version.description) == (run.run_id, "SFT of a base")
    assert version.source == f"runs:/{run.run_id}/student"
    assert [item.path for item in client.list_artifacts(version.run_id, "student")] == ["student/README.md"]


def test_equal_weights_stay_one_version_and_the_alias_moves_to_the_last_student(
    run: TrackedRun, student: StudentVersion, client, name: str
) -> None:
    later = replace(student, fingerprint="bbbb", tags={"method": "on_policy"})
    for students, expected in (([student, later], 2), ([student], 1), ([later], 2)):
        versions_now = run.register(name, "candidate", students)
        assert versions_now is not None
        assert versions_now[-1] == str(expected)
        assert int(client.get_model_version_by_alias(name, "candidate").version) == expected
    run.register(name, "champion", [replace(student, description="measured", tags={"accuracy": "0.75"})])
    assert versions(client, name) == [1, 2]
    first = client.get_model_version(name, "1")
    assert (first.description, first.tags["accuracy"], first.tags["method"]) == ("measured", "0.75", "sft")
    assert first.aliases == ["champion"]


def test_a_student_whose_files_mlflow_does_not_hold_is_told_of_and_the_alias_stays(
    run: TrackedRun, student: StudentVersion, client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    run.register(name, "candidate", [student])
    for missing in (replace(student, run_id=None), replace(student, artifact_path="absent")):
        assert run.register(name, "candidate", [replace(missing, fingerprint="cccc")]) == [None]
        assert "student cccc is not registered" in caplog.text
        caplog.clear()
    assert versions(client, name) == [1]
    assert client.get_model_version_by_alias(name, "candidate").version == 1


def test_what_mlflow_does_not_take_goes_to_the_fallback_file(
    run: TrackedRun, student: StudentVersion, tmp_path: Path, fallback_lines, closed_port: int
) -> None:
    assert run.register("a/b: no name", "candidate", [student]) is None
    (line,) = fallback_lines(tmp_path)
    assert (line["kind"], line["students"][0]["fingerprint"]) == ("model versions", "aaaa")
    never_started = TrackedRun(f"http://127.0.0.1:{closed_port}", None, "sft", tmp_path)
    assert never_started.register("model", "candidate", [student]) is None
    assert [line["model"] for line in fallback_lines(tmp_path)] == ["a/b: no name", "model"]
    off = TrackedRun(None, None, "sft", tmp_path)
    assert off.register("model", "candidate", [student]) is None


def test_a_version_is_found_by_alias_and_by_number_and_its_files_come_back(
    run: TrackedRun, student: StudentVersion, client, name: str, tmp_path: Path
) -> None:
    assert find_registered(client, name, "champion") is None
    run.register(name, "candidate", [student])
    assert find_registered(client, name, "champion") is None
    assert find_registered(client, name, "7") is None
    found = find_registered(client, name, "candidate")
    assert found is not None
    assert found == find_registered(client, name, "1")
    assert (found.version, found.fingerprint) == ("1", "aaaa")
    assert (found.run_id, found.artifact_path) == (run.run_id, "student")
    (tmp_path / "copy").mkdir()
    assert (download(client, found, tmp_path / "copy") / "README.md").read_text() == "# A student\n"
    assert download(client, found, tmp_path, "README.md").read_text() == "# A student\n"


def test_an_alias_that_another_moved_meanwhile_is_left_where_it_is(
    run: TrackedRun, student: StudentVersion, client, name: str
) -> None:
    run.register(name, "candidate", [student, replace(student, fingerprint="bbbb"), replace(student, fingerprint="cc")])
    assert move_alias(client, name, "champion", "1", was=None)
    assert not move_alias(client, name, "champion", "2", was=None)
    assert move_alias(client, name, "champion", "2", was="1")
    assert not move_alias(client, name, "champion", "3", was="1")
    # A run that is tried again finds its own work.
    assert move_alias(client, name, "champion", "2", was="1")
    assert int(client.get_model_version_by_alias(name, "champion").version) == 2
