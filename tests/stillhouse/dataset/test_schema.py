import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.dataset.labels import label
from stillhouse.dataset.read import read_rows
from stillhouse.dataset.rows import RowWriter, row_of
from stillhouse.dataset.schema import COLUMNS, dataset_schema
from stillhouse.types import PromptMetadata, StopReason, Trajectory, Turn

MESSAGES: list[Any] = [
    {"role": "user", "content": "caf\u00e9 \U0001f600 \"quoted\" \\n"},
    {
        "role": "assistant", "content": None, "reasoning_content": "hm",
        "reasoning_details": [{"b": 1, "a": [None, 1.5, {"z": {}}]}],
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{ "url":"u",\n "n": 1e3}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": ""},
    {"role": "assistant", "content": "done"},
]  # fmt: skip
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"url": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "g", "parameters": {"properties": {"k": {"type": "integer"}}}}},
]  # fmt: skip
METADATA: dict[str, Any] = {"nested": {"a": [1, "x", None]}, "big": 2**53 + 1, "small": 1e-7}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    turn = Turn("stop", {"completion_tokens": 3}, 0.5, "m", provider="a")
    full = Trajectory("k1", "p1", 0, MESSAGES, TOOLS, [turn, turn], StopReason.ANSWERED, "teacher")
    bare = Trajectory(
        "k2", "p2", 1, MESSAGES[:1], [], [], StopReason.ERROR, "teacher",
        {"kind": "permanent", "message": "bad", "status": 400},
    )  # fmt: skip
    metadata = {"p1": PromptMetadata("p1", "done", "t", "contains", METADATA)}
    with RowWriter(tmp_path / "train.parquet") as writer:
        for trajectory in (full, bare):
            about = metadata.get(trajectory.prompt_id)
            writer.write(row_of(trajectory, about, label(trajectory, about), drop_reasons=None, split=None))
    return tmp_path


def test_features_in_the_file_are_those_datasets_derives_from_its_types() -> None:
    schema = dataset_schema()
    features = datasets.Features.from_arrow_schema(schema)
    assert features.arrow_schema.equals(schema)
    assert json.loads(schema.metadata[b"huggingface"]) == {"info": {"features": features.to_dict()}}
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


def test_read_rows_gives_back_exact_json(folder: Path) -> None:
    full, bare = read_rows(folder, "train")
    assert json.dumps([full["messages"], full["tools"], full["metadata"]]) == json.dumps([MESSAGES, TOOLS, METADATA])
    assert (full["verified"], full["error"], full["kept"], full["turns"]) == (True, None, None, 2)
    assert bare["error"] == {"kind": "permanent", "message": "bad", "status": 400}
    assert (bare["tools"], bare["metadata"], bare["verified"], bare["tag"]) == ([], {}, None, None)


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_gives_back_exact_json_without_being_told_features(folder: Path, streaming: bool) -> None:
    loaded = datasets.load_dataset(
        "parquet", data_files=str(folder / "train.parquet"), split="train", streaming=streaming,
        cache_dir=str(folder / "cache"),
    )  # fmt: skip
    full, bare = loaded.map(lambda row: {"seen": True})
    assert json.dumps([full["messages"], full["tools"], full["metadata"]]) == json.dumps([MESSAGES, TOOLS, METADATA])
    assert full["error"] is None
    assert bare["tools"] == []
    assert list(full)[: len(COLUMNS)] == [column.name for column in COLUMNS]


def test_pyarrow_and_pandas_read_json_text(folder: Path) -> None:
    table = pq.read_table(folder / "train.parquet")
    assert table.schema.equals(dataset_schema())
    assert table.schema.metadata == dataset_schema().metadata
    assert table.schema.field("messages").type == pa.list_(pa.json_(pa.string()))
    frame = pd.read_parquet(folder / "train.parquet")
    assert [json.loads(text) for text in frame["messages"][0]] == MESSAGES
    assert json.loads(frame["metadata"][0]) == METADATA
    assert frame["providers"][0].tolist() == ["a"]
