import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.config.training import SftConfig, SftSource
from stillhouse.dataset.read import read_rows
from stillhouse.errors import ConfigError, InputError
from stillhouse.training.sft.sources import all_sources, read_source_rows, source_fingerprint

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": null}'}}
ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "extra": 1},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> SftSource:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SftSource(path=str(path))


def test_rows_of_a_jsonl_file_name_their_lines(tmp_path: Path):
    rows = list(read_source_rows(write_lines(tmp_path / "a.jsonl", ROWS)))
    assert [one.row.value for one in rows] == ROWS
    assert [one.row.place for one in rows] == [f"{tmp_path}/a.jsonl, line {number}" for number in (1, 2)]
    assert {one.split for one in rows} == {"train"}


def test_a_table_gives_messages_without_the_keys_of_others(tmp_path: Path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    rows = [one.row for one in read_source_rows(SftSource(path=str(tmp_path / "a.parquet")))]
    assert [row.value["messages"] for row in rows] == [row["messages"] for row in ROWS]
    assert rows[1].place == f"{tmp_path}/a.parquet, row 1"


def test_files_that_convert_reads_are_read(tmp_path: Path):
    rows = [{"instruction": "a", "output": "b"}, {"instruction": "c", "output": "d"}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.csv").write_text("instruction,output\na,b\nc,d\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    for name in ("a.json", "a.csv", "a.jsonl.gz"):
        assert [one.row.value for one in read_source_rows(SftSource(path=str(tmp_path / name)))] == rows


def test_a_file_that_cannot_be_read_is_a_row_with_a_problem(tmp_path: Path):
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    ((_, row, _),) = read_source_rows(SftSource(path=str(tmp_path / "torn.parquet")))
    assert "cannot be read as Parquet" in str(row.problem)


def test_a_dataset_gives_its_own_split(dataset_folder: Path):
    rows = list(read_source_rows(SftSource(path=str(dataset_folder))))
    for split in ("train", "validation"):
        stored = [row["messages"] for row in read_rows(dataset_folder, split)]  # type: ignore[arg-type]
        assert [one.row.value["messages"] for one in rows if one.split == split] == stored


def test_a_hugging_face_dataset_is_read_by_its_split(tmp_path: Path):
    write_lines(tmp_path / "train.jsonl", ROWS)
    (one, other) = read_source_rows(SftSource(path=f"hf:{tmp_path}"))
    assert one.row.value["messages"] == ROWS[0]["messages"]
    assert other.row.place == f"hf:{tmp_path}[train], row 1"
    with pytest.raises(InputError, match=r"hf:.*\[test\]"):
        list(read_source_rows(SftSource(path=f"hf:{tmp_path}", split="test")))


def test_a_hugging_face_dataset_without_the_package_names_the_extra(tmp_path: Path):
    code = (
        "import sys; sys.modules['datasets'] = None;"
        "from stillhouse.training.sft.sources import *;"
        "list(read_source_rows(SftSource(path='hf:a/b')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigError: sft.sources = 'hf:a/b' needs the package `datasets`: install stillhouse[hub]" in done.stderr


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("none.jsonl", InputError, "does not exist.*hf:NAME"),
        ("a.txt", ConfigError, "'.txt'.*.jsonl, .*.parquet"),
        ("folder", InputError, "train.parquet"),
    ],
)
def test_a_source_that_cannot_be_read_says_what_was_expected(
    tmp_path: Path, name: str, error: type[Exception], message: str
):
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(error, match=message):
        list(read_source_rows(SftSource(path=str(tmp_path / name))))


def test_a_hugging_face_dataset_without_a_name_says_what_was_expected():
    with pytest.raises(ConfigError, match=r"sft\.sources = 'hf:' .*hf:NAME"):
        list(read_source_rows(SftSource(path="hf:")))


def test_the_fingerprint_of_a_source_is_that_of_its_bytes(tmp_path: Path, dataset_folder: Path):
    one = write_lines(tmp_path / "a.jsonl", ROWS)
    other = write_lines(tmp_path / "b.jsonl", ROWS)
    assert source_fingerprint(one) == source_fingerprint(other)
    write_lines(tmp_path / "b.jsonl", ROWS[:1])
    assert source_fingerprint(one) != source_fingerprint(other)
    assert source_fingerprint(SftSource(path="hf:a/b", split="s")) == "hf:a/b[s]"
    assert len(source_fingerprint(SftSource(path=str(dataset_folder)))) == 2 * 64 + 1


def test_the_runs_own_dataset_comes_first_unless_its_weight_is_zero(tmp_path: Path):
    other = SftSource(path="b.jsonl")
    config = SftConfig(dataset_weight=0.5, sources=(other,))
    assert all_sources(tmp_path, config) == [SftSource(path=str(tmp_path), weight=0.5), other]
    assert all_sources(None, SftConfig(dataset_weight=0.0, sources=(other,))) == [other]


def test_naming_sources_imports_no_torch():
    code = "import sys, stillhouse.training.sft.sources; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
