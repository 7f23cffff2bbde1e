from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillhouse.dataset.schema import Column, Kind, arrow_schema
from stillhouse.dataset.table import TableWriter, gathered

COLUMNS = (
    Column("id", Kind.TEXT, "a"),
    Column("messages", Kind.JSONS, "b"),
    Column("tag", Kind.TEXT, "c"),
    Column("cost", Kind.REAL, "d"),
    Column("error", Kind.JSON, "e"),
)


def rows(number: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{i:032x}", "messages": [f'{{"n":{i}}}', "{}"], "tag": None if i % 7 else "t", "cost": i / 3,
            "error": None if i % 3 else '{"kind":"k"}',
        }
        for i in range(number)
    ]  # fmt: skip


def test_rows_come_back_in_order_with_the_schema_of_the_columns(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "a.parquet", COLUMNS) as writer:
        for row in rows(1000):
            writer.write(row)
        assert writer.num_rows == 1000
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.schema.equals(arrow_schema(COLUMNS))
    assert table.schema.metadata == arrow_schema(COLUMNS).metadata
    assert table.to_pylist() == rows(1000)


def test_a_file_without_rows_still_has_its_columns(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "a.parquet", COLUMNS):
        pass
    assert pq.read_table(tmp_path / "a.parquet").schema.equals(arrow_schema(COLUMNS))


def test_row_groups_are_cut_by_bytes_of_text(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "a.parquet", COLUMNS, group_bytes=60_000) as writer:
        for row in rows(3000):
            writer.write(row)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [1536, 1464]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 2000), max_size=5), wrote=st.integers(0, 700))
def test_bytes_do_not_depend_on_the_pieces_that_rows_came_in(tmp_path: Path, cuts: list[int], wrote: int) -> None:
    schema = pa.schema([(column.name, column.kind.storage_type) for column in COLUMNS])
    table = pa.Table.from_pylist(rows(2000), schema)
    with TableWriter(tmp_path / "whole.parquet", COLUMNS, group_bytes=40_000) as writer:
        writer.write_table(table)
    edges = sorted({wrote, 2000, *(cut for cut in cuts if cut > wrote)})
    with TableWriter(tmp_path / "parts.parquet", COLUMNS, group_bytes=40_000) as writer:
        for row in rows(wrote):
            writer.write(row)
        for start, end in pairwise(edges):
            writer.write_table(table.slice(start, end - start))
    assert (tmp_path / "whole.parquet").read_bytes() == (tmp_path / "parts.parquet").read_bytes()


def test_labels_have_statistics_and_messages_have_none(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "a.parquet", COLUMNS) as writer:
        for row in rows(100):
            writer.write(row)
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    assert columns["cost"].statistics.max == 33.0
    assert columns["messages.list.element"].statistics is None
    assert "RLE_DICTIONARY" in columns["tag"].encodings
    assert "RLE_DICTIONARY" not in columns["id"].encodings


def test_small_tables_are_gathered_in_order_and_a_column_that_some_lack_is_null_there() -> None:
    parts = [pa.table({"a": [1, 2]}), pa.table({"a": [3], "b": ["x"]}), pa.table({"a": [4, 5]}), pa.table({"a": [6]})]
    assert [table.to_pydict() for table in gathered(parts, 3)] == [
        {"a": [1, 2, 3], "b": [None, None, "x"]},
        {"a": [4, 5, 6]},
    ]
    assert [table["a"].to_pylist() for table in gathered(parts, 4)] == [[1, 2, 3, 4, 5], [6]]
    assert list(gathered([parts[0].slice(0, 0)], 1)) == []
