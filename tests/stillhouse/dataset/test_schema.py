import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.dataset.read import read_rows
from stillhouse.dataset.rows import candidate_row
from stillhouse.dataset.schema import CANDIDATE_COLUMNS, COLUMNS, Column, arrow_schema
from stillhouse.dataset.table import TableWriter
from stillhouse.types import PromptMetadata, StopReason, Trajectory, Turn

MESSAGES: list[Any] = [
    {"role": "user", "content": "caf\u00e9 \U0001f600 \"quoted\" \\n"},
    {
        "role": "assistant", "content": None, "reasoning_content": "hm",
        "reasoning_details": [{"b": 1, "a": [None, 1.5, {"z": {}}]}],
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{ "url":"u",\n "n": 1e3}'}},
            {"id": "d", "type": "function", "function": {"name": "g", "arguments": '{"k": {"deep": [null]}}'}},
            {"id": "e", "type": "function", "function": {"name": "g", "arguments": '{"k": '}},
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": ""},
    {"role": "assistant", "content": "done"},
]  # fmt: skip
STORED = json.loads(json.dumps(MESSAGES))
for place, value in enumerate([{"url": "u", "n": 1000.0}, {"k": {"deep": [None]}}, '{"k": ']):
    STORED[1]["tool_calls"][place]["function"]["arguments"] = value
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
    labels = {"verified": True, "scores": {"reward": 1.0}, "objections": []}
    with TableWriter(tmp_path / "train.parquet", CANDIDATE_COLUMNS) as writer:
        writer.write(candidate_row(full, PromptMetadata("p1", "done", "t", "contains", METADATA), labels, None))
        writer.write(candidate_row(bare, None, {}, None))
    return tmp_path


@pytest.mark.parametrize("columns", [CANDIDATE_COLUMNS, COLUMNS])
def test_features_in_the_file_are_those_datasets_derives_from_its_types(columns: Sequence[Column]) -> None:
    schema = arrow_schema(columns)
    features = datasets.Features.from_arrow_schema(schema)
    assert features.arrow_schema.equals(schema)
    assert json.loads(schema.metadata[b"huggingface"]) == {"info": {"features": features.to_dict()}}
    assert len({column.name for column in columns}) == len(columns)


def test_read_rows_gives_back_exact_json(folder: Path) -> None:
    full, bare = read_rows(folder, "train")
    assert json.dumps([full["messages"], full["tools"], full["metadata"]]) == json.dumps([STORED, TOOLS, METADATA])
    assert (full["verified"], full["error"], full["turns"], full["scores"]) == (True, None, 2, {"reward": 1.0})
    assert bare["error"] == {"kind": "permanent", "message": "bad", "status": 400}
    assert (bare["tools"], bare["metadata"], bare["verified"], bare["tag"]) == ([], {}, None, None)


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_gives_back_exact_json_without_being_told_features(folder: Path, streaming: bool) -> None:
    loaded = datasets.load_dataset(str(folder), split="train", streaming=streaming, cache_dir=str(folder / "cache"))
    full, bare = loaded.map(lambda row: {"seen": True, "messages": row["messages"]})
    assert json.dumps([full["messages"], full["tools"], full["metadata"]]) == json.dumps([STORED, TOOLS, METADATA])
    assert full["error"] is None
    assert bare["tools"] == []
    assert list(full)[: len(CANDIDATE_COLUMNS)] == [column.name for column in CANDIDATE_COLUMNS]


def test_pyarrow_and_pandas_read_json_text(folder: Path) -> None:
    table = pq.read_table(folder / "train.parquet")
    assert table.schema.equals(arrow_schema(CANDIDATE_COLUMNS))
    assert table.schema.metadata == arrow_schema(CANDIDATE_COLUMNS).metadata
    assert table.schema.field("messages").type == pa.list_(pa.json_(pa.string()))
    frame = pd.read_parquet(folder / "train.parquet")
    assert [json.loads(text) for text in frame["messages"][0]] == STORED
    assert json.loads(frame["metadata"][0]) == METADATA
    assert frame["providers"][0].tolist() == ["a"]


def test_duckdb_sees_json_and_can_ask_for_what_is_in_it(folder: Path) -> None:
    table = duckdb.read_parquet(str(folder / "train.parquet"))
    types = dict(zip(table.columns, map(str, table.types), strict=True))
    assert (types["messages"], types["tools"], types["metadata"]) == ("JSON[]", "JSON[]", "JSON")
    messages, url, keys = duckdb.sql(
        f"""SELECT messages, messages[2]->>'$.tool_calls[0].function.arguments.url',
        json_keys(messages[2]->'$.tool_calls[1].function.arguments') FROM '{folder}/train.parquet' LIMIT 1"""
    ).fetchall()[0]
    assert [json.loads(text) for text in messages] == STORED
    assert (url, keys) == ("u", ["k"])
