import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.schema import (
    CANDIDATE_COLUMNS,
    DIFFICULTY_COLUMNS,
    DUPLICATE_COLUMNS,
    JUDGE_COLUMNS,
    CandidateShard,
    Column,
)
from stillhouse.dataset.select.select import Selection, select_rows
from stillhouse.dataset.table import TableWriter

Row = dict[str, Any]

GOOD: Row = {
    "sample_index": 0,
    "messages": [],
    "tools": [],
    "arguments": [],
    "metadata": "{}",
    "teacher": "teacher",
    "turns": 2,
    "num_tool_calls": 1,
    "num_tool_errors": 0,
    "stop_reason": "answered",
    "verified": True,
    "has_answer": True,
    "answer_chars": 10,
    "sampled_chars": 40,
    "num_tokens": 50,
    "num_supervised_tokens": 10,
}
SIDE_FILES: dict[str, Sequence[Column]] = {
    "judge": JUDGE_COLUMNS,
    "difficulty": DIFFICULTY_COLUMNS,
    "duplicates": DUPLICATE_COLUMNS,
}


@pytest.fixture(scope="session")
def make_row() -> Callable[..., Row]:
    """A finished, right row that passes every filter; its id says its prompt and sample unless told otherwise."""

    def make(prompt_id: str = "p", sample_index: int = 0, **changes: Any) -> Row:
        name = changes.pop("id", f"{prompt_id}/{sample_index}")
        return {**GOOD, "id": name, "prompt_id": prompt_id, "sample_index": sample_index, **changes}

    return make


@pytest.fixture(scope="session")
def write_shards(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[CandidateShard]]:
    """Shards of rows, `cuts` being where one ends; the side files whose columns some row has are written as well."""

    def write(rows: Sequence[Row], cuts: Sequence[int] = ()) -> list[CandidateShard]:
        folder = tmp_path_factory.mktemp("shards")
        return [
            _shard(folder / str(number), rows[start:stop])
            for number, (start, stop) in enumerate(itertools.pairwise([0, *cuts, len(rows)]))
        ]

    return write


@pytest.fixture(scope="session")
def select(write_shards: Callable[..., list[CandidateShard]]) -> Callable[..., Selection]:
    def run(rows: Sequence[Row], cuts: Sequence[int] = (), max_tokens: int | None = 100, **config: Any) -> Selection:
        config.setdefault("validation_fraction", 0.0)
        return select_rows(write_shards(rows, cuts), DatasetConfig(**config), max_tokens=max_tokens)

    return run


@pytest.fixture(scope="session")
def frame() -> Callable[..., pd.DataFrame]:
    """Rows as `read_candidates` holds them, from the columns that matter; ids count from 1."""

    def make(**columns: Any) -> pd.DataFrame:
        size = len(next(iter(columns.values())))
        ids = np.arange(1, size + 1, dtype=np.uint64)
        given = {
            "id": ids,
            "original": columns.get("id", ids),
            "is_near": False,
            "sample_index": 0,
            "num_tool_calls": 0,
            "size": 1.0,
            "score": np.nan,
            "verified": 1,
            "draw": 0.5,
            "tag": None,
            "is_repeated": False,
            **columns,
        }
        rows = pd.DataFrame(given)
        rows["prompt"] = rows.get("prompt", rows["id"])
        rows["cluster"] = rows.get("cluster", rows["prompt"])
        return rows.assign(tag=pd.Categorical(rows["tag"]))

    return make


def _shard(folder: Path, rows: Sequence[Row]) -> CandidateShard:
    folder.mkdir()
    _write(folder / "candidates.parquet", CANDIDATE_COLUMNS, rows)
    side = {
        name: columns for name, columns in SIDE_FILES.items() if any(c.name in row for row in rows for c in columns)
    }
    for name, columns in side.items():
        _write(folder / f"{name}.parquet", columns, rows)
    paths = {name: folder / f"{name}.parquet" for name in side}
    return CandidateShard(folder / "candidates.parquet", folder / "signatures.parquet", **paths)


def _write(path: Path, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    with TableWriter(path, columns) as table:
        for row in rows:
            table.write({column.name: row.get(column.name) for column in columns})
