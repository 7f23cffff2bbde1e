from pathlib import Path

import pytest

from stillhouse.errors import ConfigError, InputError
from stillhouse.report.view.sources import find_source
from stillhouse.store.runs import RECENT_FILE, RunRecord, write_run_record


def _record(artifacts: dict[str, list[str]]) -> RunRecord:
    return RunRecord("distill", "2026-03-01T10:00:00+00:00", "a" * 32, "b" * 36, "calm-otter", artifacts)


def _write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_a_file_of_trajectories_stands_for_itself(name: str, tmp_path: Path) -> None:
    _write(tmp_path, name)
    source = find_source(str(tmp_path / name), tmp_path)
    assert [part.path for part in source.parts] == [tmp_path / name]
    assert source.title == "out"


@pytest.mark.parametrize(
    "files", [["trajectories.jsonl"], ["train.parquet", "validation.parquet", "rejected.parquet"], ["train.parquet"]]
)
def test_an_artifacts_folder_stands_for_its_files(files: list[str], tmp_path: Path) -> None:
    _write(tmp_path, *files)
    assert [part.path.name for part in find_source(str(tmp_path), tmp_path).parts] == files


def test_a_run_stands_for_the_trajectories_of_all_its_stages(tmp_path: Path) -> None:
    _write(tmp_path, *(f"{folder}/trajectories.jsonl" for folder in ("r1", "r2", "e")))
    _write(tmp_path, "m/metadata.jsonl", "d/train.parquet", "d/rejected.parquet")
    stages = {"prompts": ["m"], "rollouts": ["r1", "r2"], "dataset": ["d"], "evaluation of base": ["e"]}
    record = _record({stage: [str(tmp_path / folder) for folder in folders] for stage, folders in stages.items()})
    report = tmp_path / "reports" / "20260301-100000-distill"
    write_run_record(report, record)
    parts = [("rollouts", "r1"), ("rollouts", "r2"), ("evaluation of base", "e")]
    for name in ("latest", "calm-otter", str(report), str(report / "run.json")):
        source = find_source(name, tmp_path)
        assert [(part.stage, part.path.parent.name) for part in source.parts] == parts
        assert [path.name for path in source.labels] == ["train.parquet", "rejected.parquet"]
        assert [path.parent.name for path in source.metadata] == ["m"]
        assert source.title == "distill, calm-otter"


def test_a_run_under_way_has_the_last_trajectories_of_its_stage_as_well(tmp_path: Path) -> None:
    report = tmp_path / "reports" / "20260301-100000-distill"
    write_run_record(report, _record({}))
    _write(report, RECENT_FILE)
    source = find_source("latest", tmp_path)
    assert [(part.stage, part.path) for part in source.parts] == [("under way", report / RECENT_FILE)]


def test_what_holds_no_trajectories_is_refused_with_what_would(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"folder.*trajectories\.jsonl"):
        find_source(str(tmp_path / "empty"), tmp_path)
    _write(tmp_path, "out.csv")
    with pytest.raises(ConfigError, match=r"\.jsonl or \.parquet"):
        find_source(str(tmp_path / "out.csv"), tmp_path)
    write_run_record(tmp_path / "reports" / "r", _record({"prompts": [], "rollouts": [str(tmp_path / "gone")]}))
    with pytest.raises(InputError, match=r"prompts, rollouts; gone: .*gone"):
        find_source("latest", tmp_path)
