import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.dataset.read import read_file, read_rows
from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import (
    CANDIDATE_COLUMNS,
    COLUMNS,
    DUPLICATE_COLUMNS,
    JUDGE_COLUMNS,
    CandidateShard,
    arrow_schema,
)
from stillhouse.dataset.table import TableWriter
from stillhouse.dataset.write import write_rows
from stillhouse.errors import InputError
from stillhouse.types import PromptMetadata, Trajectory

Make = Callable[..., Trajectory]


@dataclass
class Decided:
    """Rows 0 to 9: validation, seven times train, one rejected for two reasons, one that was there before."""

    splits: Any = field(default_factory=lambda: np.array([1, 0, 0, 0, 0, 0, 0, 0, -1, 0], np.int8))
    reasons: Any = field(default_factory=lambda: np.array([0] * 8 + [5, 0], np.uint64))
    pass_rates: Any = field(default_factory=lambda: np.array([0.5, np.nan] * 5, np.float32))
    verified: Any = field(default_factory=lambda: np.array([1, 0, -1, 1, 1, 1, 1, 1, 0, 1], np.int8))
    repeated: Any = field(default_factory=lambda: np.array([False] * 9 + [True]))

    def reasons_of(self, row: int) -> list[str]:
        names = ("wrong", "too_long", "refusal")
        return [name for place, name in enumerate(names) if int(self.reasons[row]) >> place & 1]


@pytest.fixture
def shards(tmp_path: Path, make_trajectory: Make) -> list[CandidateShard]:
    return [written(tmp_path / f"{first}.parquet", make_trajectory, range(first, first + 5)) for first in (0, 5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "dataset"
    folder.mkdir()
    return folder


def written(path: Path, make: Make, numbers: range) -> CandidateShard:
    with TableWriter(path, CANDIDATE_COLUMNS, group_bytes=1) as writer:
        for number in numbers:
            prompt = PromptMetadata(f"prompt-{number}", "5", "sums", "numeric", {})
            labels = {"verified": None, "scores": {"reward": number / 10}}
            writer.write(candidate_row(make(number), prompt, labels, "s"))
    return CandidateShard(path, path.with_suffix(".signatures"))


def ids(folder: Path, name: str) -> list[int]:
    return [int(row["id"], 16) for row in read_file(folder / f"{name}.parquet", ["id"])]


def test_each_row_is_in_the_file_decided_for_it_in_input_order(shards: list[CandidateShard], folder: Path) -> None:
    write_rows(shards, Decided(), folder)
    assert ids(folder, "train") == [1, 2, 3, 4, 5, 6, 7]
    assert (ids(folder, "validation"), ids(folder, "rejected")) == ([0], [8])
    assert {path.name for path in folder.iterdir()} == {"train.parquet", "validation.parquet", "rejected.parquet"}


def test_rows_carry_every_column_and_what_was_decided(shards: list[CandidateShard], folder: Path) -> None:
    write_rows(shards, Decided(), folder)
    assert pq.read_schema(folder / "train.parquet").equals(arrow_schema(COLUMNS))
    kept, unverified, *_ = read_rows(folder, "train")
    (rejected,) = read_rows(folder, "rejected")
    names = ("verified", "pass_rate", "kept", "drop_reasons", "split")
    assert [kept[name] for name in names] == [False, None, True, [], "train"]
    assert [unverified[name] for name in names] == [None, 0.5, True, [], "train"]
    assert [rejected[name] for name in names] == [False, 0.5, False, ["wrong", "refusal"], None]
    assert kept["scores"] == {"reward": 0.1}
    assert kept["judge"] is kept["student_nll"] is kept["duplicate_of"] is None
    assert kept["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"expression": "2 + 3"}


def test_side_files_lie_beside_their_rows(shards: list[CandidateShard], folder: Path, tmp_path: Path) -> None:
    judge, duplicates = tmp_path / "judge.parquet", tmp_path / "duplicates.parquet"
    with TableWriter(judge, JUDGE_COLUMNS) as writer:
        for number in range(5, 10):
            writer.write({"judge": json.dumps({"scores": {"style": number}})})
    columns = {column.name: ["x"] * 5 for column in DUPLICATE_COLUMNS}
    pq.write_table(pa.table({**columns, "duplicate_similarity": [0.9] * 5}), duplicates)
    second = CandidateShard(shards[1].candidates, shards[1].signatures, judge=judge, duplicates=duplicates)
    write_rows([shards[0], second], Decided(), folder)
    rows = list(read_rows(folder, "train"))
    assert [row["judge"] for row in rows] == [None] * 4 + [{"scores": {"style": number}} for number in (5, 6, 7)]
    assert [row["duplicate_similarity"] for row in rows] == [None] * 4 + [0.9] * 3


def test_a_shard_from_before_a_label_on_request_was_there_has_no_value(
    shards: list[CandidateShard], folder: Path
) -> None:
    for shard in shards:
        pq.write_table(pq.read_table(shard.candidates).drop_columns(["mixed_scripts"]), shard.candidates)
    write_rows(shards, Decided(), folder)
    assert {row["mixed_scripts"] for row in read_rows(folder, "train")} == {None}
    pq.write_table(pq.read_table(shards[0].candidates).drop_columns(["verifier"]), shards[0].candidates)
    with pytest.raises(InputError, match=" verifier"):
        write_rows(shards, Decided(), folder)


def test_a_side_file_of_another_length_is_named(shards: list[CandidateShard], folder: Path, tmp_path: Path) -> None:
    with TableWriter(tmp_path / "judge.parquet", JUDGE_COLUMNS) as writer:
        writer.write({"judge": None})
    short = CandidateShard(shards[1].candidates, shards[1].signatures, judge=tmp_path / "judge.parquet")
    with pytest.raises(InputError, match=r"judge\.parquet.* 1 .* 5"):
        write_rows([shards[0], short], Decided(), folder)


@pytest.mark.parametrize("number", [9, 11])
def test_decisions_about_other_rows_are_refused(shards: list[CandidateShard], folder: Path, number: int) -> None:
    splits = np.zeros(number, np.int8)
    with pytest.raises(InputError, match=f"10 .* {number} "):
        write_rows(shards, Decided(splits=splits), folder)


def test_equal_rows_give_equal_bytes_whatever_the_shards(
    shards: list[CandidateShard], folder: Path, tmp_path: Path, make_trajectory: Make
) -> None:
    write_rows(shards, Decided(), folder)
    other = tmp_path / "other"
    other.mkdir()
    cuts = [range(3), range(3, 3), range(3, 10)]
    write_rows([written(tmp_path / f"c{cut.stop}{cut.start}", make_trajectory, cut) for cut in cuts], Decided(), other)
    for path in folder.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes()
