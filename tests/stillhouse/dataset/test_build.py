import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.read import original_messages, read_rows
from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject, StopReason, Trajectory
from tests.stillhouse.dataset.building import build_dataset

Make = Callable[..., Trajectory]
Build = Callable[..., JsonObject]
STUDENT = "embedded:student"


@pytest.fixture
def build(tmp_path: Path, metadata_for: Callable[..., Any]) -> Build:
    """Builds a dataset of trajectories in a folder of the test's; its facts."""

    def build(name: str, trajectories: list[Trajectory], max_length: int = 512, **config: Any) -> JsonObject:
        folder = tmp_path / name
        folder.mkdir()
        num_rows, facts = build_dataset(
            iter(trajectories),
            metadata_for(trajectories),
            DatasetConfig(**{"validation_fraction": 0.0, **config}),
            tokenizer_ref=STUDENT,
            max_length=max_length,
            folder=folder,
        )
        assert num_rows == facts["kept"]
        return facts

    return build


def mixed(make: Make) -> list[Trajectory]:
    """Eight good rows, one of them twice, and one for each of several ways to fail."""
    good = [make(number) for number in range(8)]
    call = good[0].messages[1]
    return [
        *good,
        good[3],
        make(100, answer="The answer is 6."),
        make(
            101, stop_reason=StopReason.ERROR, turns=[], error={"kind": "permanent", "message": "gone", "status": 404}
        ),
        make(102, stop_reason=StopReason.MAX_TURNS, messages=[good[0].messages[0], call, good[0].messages[2], call]),
        make(103, answer="The answer " + "is " * 600 + "5"),
        make(104, messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "  "}]),
    ]


def test_every_trajectory_is_in_one_file_with_all_reasons(build: Build, make_trajectory: Make, tmp_path: Path) -> None:
    trajectories = mixed(make_trajectory)
    facts = build("d", trajectories, validation_fraction=0.3)
    rows = {name: list(read_rows(tmp_path / "d", name)) for name in ("train", "validation", "rejected")}
    ids = [row["id"] for name in rows for row in rows[name]]
    assert sorted(ids) == sorted({t.rollout_key for t in trajectories})
    assert {int(row["id"], 16): row["drop_reasons"] for row in rows["rejected"]} == {
        100: ["wrong"],
        101: ["error", "no_answer"],
        102: ["max_turns", "no_answer", "wrong"],
        103: ["too_long"],
        104: ["no_answer", "wrong"],
    }
    assert all(row["kept"] and row["drop_reasons"] == [] and row["split"] == name
               for name in ("train", "validation") for row in rows[name])  # fmt: skip
    assert all(row["kept"] is False and row["split"] is None for row in rows["rejected"])
    assert (facts["kept"], facts["dropped"], facts["duplicates"]) == (8, 5, 1)
    assert (facts["train"], facts["validation"]) == (len(rows["train"]), len(rows["validation"]))
    assert (facts["right"], facts["wrong"], facts["unverified"]) == (9, 3, 1)
    assert facts["drop_reasons"] == {"error": 1, "max_turns": 1, "no_answer": 3, "wrong": 3, "too_long": 1}
    funnel = facts["funnel"]
    assert funnel[:4] == [["rollouts", 14], ["distinct", 13], ["finished", 11], ["with an answer", 10]]
    assert (["not wrong", 9] in funnel, ["short enough", 8] in funnel, funnel[-1]) == (True, True, ["kept", 8])


def test_no_row_is_longer_than_the_student_takes(build: Build, make_trajectory: Make, tmp_path: Path) -> None:
    trajectories = [make_trajectory(0, answer="The answer is " + "so " * 50 + "5"), make_trajectory(1)]
    build("a", trajectories)
    lengths = sorted(row["num_tokens"] for row in read_rows(tmp_path / "a", "train"))
    assert build("b", trajectories, max_length=lengths[0])["drop_reasons"] == {"too_long": 1}


def test_equal_input_gives_equal_bytes(build: Build, make_trajectory: Make, tmp_path: Path) -> None:
    trajectories = mixed(make_trajectory)
    for name in ("a", "b"):
        build(name, trajectories, validation_fraction=0.05)
    names = sorted(os.listdir(tmp_path / "a"))
    assert names == ["README.md", "rejected.parquet", "report.html", "train.parquet", "validation.parquet"]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_unknown_student_is_named(tmp_path: Path, make_trajectory: Make) -> None:
    with pytest.raises(ConfigError, match="no-such"):
        build_dataset(
            [make_trajectory(0)], {}, DatasetConfig(), tokenizer_ref="./no-such", max_length=9, folder=tmp_path
        )


def test_folder_loads_as_a_hugging_face_dataset(build: Build, make_trajectory: Make, tmp_path: Path) -> None:
    trajectories = mixed(make_trajectory)
    facts = build("d", trajectories, validation_fraction=0.3)
    loaded = datasets.load_dataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {name: facts[name] for name in loaded}
    first = loaded["train"][0]
    assert original_messages(first) == make_trajectory(int(first["id"], 16)).messages
    rejected = datasets.load_dataset(str(tmp_path / "d"), "rejected", cache_dir=str(tmp_path / "cache"))
    assert len(rejected["rejected"]) == facts["dropped"]
