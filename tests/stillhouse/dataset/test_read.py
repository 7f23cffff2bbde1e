import gc
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stillhouse.dataset.read import iter_columns, original_messages, read_file
from stillhouse.dataset.schema import Column, Kind
from stillhouse.dataset.table import TableWriter
from stillhouse.errors import InputError

COLUMNS = (Column("id", Kind.TEXT, "a"), Column("messages", Kind.JSONS, "b"), Column("scores", Kind.JSON, "c"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with TableWriter(tmp_path / "rows.parquet", COLUMNS) as writer:
        for number in range(3000):
            writer.write({"id": str(number), "messages": ['{"role":"user"}'], "scores": f'{{"x":{number}}}'})
    return tmp_path / "rows.parquet"


def test_rows_are_read_in_order_with_json_as_objects(path: Path) -> None:
    rows = list(read_file(path))
    assert [row["scores"]["x"] for row in rows] == list(range(3000))
    assert rows[0] == {"id": "0", "messages": [{"role": "user"}], "scores": {"x": 0}}


def test_columns_are_read_in_batches_in_the_order_asked_for_with_json_as_text(path: Path) -> None:
    batches = list(iter_columns(path, ["scores", "id"], batch_rows=1000))
    assert [(batch.num_rows, batch.schema.names) for batch in batches] == [(1000, ["scores", "id"])] * 3
    assert [text for batch in batches for text in batch["id"].to_pylist()] == [str(number) for number in range(3000)]
    assert batches[0]["scores"].type == pa.string()
    assert batches[0]["scores"][7].as_py() == '{"x":7}'
    (messages,) = iter_columns(path, ["messages"])
    assert messages["messages"].type == pa.list_(pa.string())


def test_memory_holds_a_part_of_the_file(tmp_path: Path) -> None:
    chance = random.Random(0)
    path = tmp_path / "rows.parquet"
    with TableWriter(path, COLUMNS, group_bytes=1 << 17) as writer:
        for _ in range(1 << 14):
            writer.write({"id": chance.randbytes(256).hex(), "messages": [], "scores": None})
    gc.collect()
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in iter_columns(path, None, batch_rows=512)]
    assert max(held) < path.stat().st_size / 4


@pytest.mark.parametrize("read", [read_file, iter_columns])
def test_columns_that_a_file_lacks_are_named(path: Path, read: Callable[..., Iterator[Any]]) -> None:
    with pytest.raises(InputError, match=r"rows\.parquet .*tag, verified"):
        next(read(path, ["id", "verified", "tag"]))


@pytest.mark.parametrize("content", [None, b"PAR1 not really"])
def test_a_file_that_is_no_dataset_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.parquet"):
        next(read_file(tmp_path / "x.parquet"))


def test_original_messages_leave_messages_without_calls_as_they_are() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": None}]
    assert original_messages({"messages": messages, "arguments": []}) == messages
