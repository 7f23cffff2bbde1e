import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts import ParsedPrompts

Load = Callable[..., ParsedPrompts]


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


def parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue().to_pybytes()


def texts(loaded: ParsedPrompts) -> list[object]:
    return [prompt.messages[-1]["content"] for prompt in loaded.prompts]


def test_txt_holds_a_prompt_a_line_whatever_its_line_ends(read: Load) -> None:
    loaded = read(b"\xef\xbb\xbfone\r\n\r\n  two\xe2\x80\xa8still two  \n \t \nthree", ".txt")
    assert texts(loaded) == ["one", "two\u2028still two", "three"]


ROWS = [{"prompt": "one", "tag": "a"}, {"prompt": "zwei ü", "tag": None}]
LINES = '{"prompt": "one", "tag": "a"}\n\n{"prompt": "zwei ü", "tag": NaN}\n'
FILES = {
    "bom.jsonl": b"\xef\xbb\xbf" + LINES.encode(),
    "crlf.jsonl": LINES.replace("\n", "\r\n").encode(),
    "utf16.jsonl": LINES.encode("utf-16"),
    "p.jsonl.gz": gzip.compress(LINES.encode()),
    "p.JSONL.ZST": zstd(LINES.encode()),
    "joined.jsonl": LINES.replace("\n", "").encode(),
    "list.jsonl": json.dumps(ROWS).encode(),
    "list.json": json.dumps(ROWS, indent=2).encode(),
    "lines.json": LINES.encode(),
    "joined.json": LINES.replace("\n", "").replace(",", ",\n").encode(),
    "p.csv": "prompt,tag\none,a\nzwei ü,\n".encode("utf-8-sig"),
    "utf16.csv": "prompt,tag\r\none,a\r\nzwei ü,\r\n".encode("utf-16"),
    "p.csv.gz": gzip.compress("prompt,tag\none,a\nzwei ü,\n".encode()),
    "p.parquet": parquet(ROWS),
    "p.tsv": "prompt\ttag\none\ta\nzwei ü\t\n".encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_the_same_prompts_are_read_from_every_kind_of_file(tmp_path: Path, name: str, load: Load) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    loaded = load(tmp_path / name)
    assert texts(loaded) == ["one", "zwei ü"]
    assert [entry.tag for entry in loaded.metadata.values()] == ["a", None]
    assert (loaded.report.malformed, loaded.report.notes) == ([], {})


def test_one_object_in_a_json_file_is_one_prompt(read: Load) -> None:
    assert texts(read('{\n  "prompt": "one"\n}\n', ".json")) == ["one"]


def test_bytes_that_are_not_utf8_cost_only_their_own_row(tmp_path: Path, load: Load) -> None:
    (tmp_path / "p.txt").write_bytes(b"one\n\xff\xc0two\nthree\n")
    (tmp_path / "p.csv").write_bytes(b"prompt\none\n\xe9two\nthree\n")
    (tmp_path / "p.jsonl").write_bytes(b'{"prompt":"one"}\n{"prompt":"\xfftwo"}\n{"prompt":"three"}\n')
    for name, line in (("p.txt", 2), ("p.csv", 3), ("p.jsonl", 2)):
        loaded = load(tmp_path / name, failure_budget=0.5)
        assert texts(loaded) == ["one", "three"]
        assert f"line {line}: " in loaded.report.malformed[0]


def test_csv_row_with_a_cell_too_many_is_reported(tmp_path: Path, load: Load) -> None:
    path = tmp_path / "p.csv"
    path.write_text('prompt,tag\n"one\nand on",a\ntwo,b,c\n\nthree,c\n')
    loaded = load(path, failure_budget=0.5)
    assert texts(loaded) == ["one\nand on", "three"]
    assert loaded.report.malformed == [f"{path}, line 4: expected 2 cells as in the header, saw 3"]


def test_unusable_sources_are_named(tmp_path: Path, load: Load) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"prompts\.sources.* hf:.*stillhouse convert "):
        load(tmp_path)
    (tmp_path / "p.doc").write_text("[]")
    with pytest.raises(ConfigError, match=r"p\.doc"):
        load(tmp_path / "p.doc")
    (tmp_path / "p.csv").write_text("topic\nwhy\n")
    with pytest.raises(InputError, match="topic"):
        load(tmp_path / "p.csv")
    (tmp_path / "p.parquet").write_text("no parquet")
    with pytest.raises(InputError, match=r"p\.parquet"):
        load(tmp_path / "p.parquet")
    for name, content in (("p.txt", b"\xff\xfeh"), ("p.jsonl.gz", b"{}"), ("p.jsonl.zst", b"{}")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            load(tmp_path / name)


def test_parquet_values_beyond_json_become_text_in_metadata(tmp_path: Path, load: Load) -> None:
    path = tmp_path / "p.parquet"
    day = pa.array([0], type=pa.date32())
    pq.write_table(pa.table({"prompt": ["x"], "day": day, "tags": [["a", "b"]]}), path)
    (entry,) = load(path).metadata.values()
    assert entry.metadata == {"day": "1970-01-01", "tags": ["a", "b"]}


def test_whole_numbers_keep_all_digits_in_every_format(tmp_path: Path, load: Load) -> None:
    number = 98765432109876543210
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "p", "answer": number, "metadata": {"id": [number]}}))
    (tmp_path / "p.csv").write_text(f'prompt,answer,metadata\np,{number},"{{""id"": [{number}]}}"\n')
    wide = pa.array([Decimal(number)], pa.decimal128(38, 0))
    table = pa.table({"prompt": ["p"], "answer": wide, "metadata": [json.dumps({"id": [number]})]})
    pq.write_table(table, tmp_path / "p.parquet")
    for name in ("p.jsonl", "p.csv", "p.parquet"):
        (entry,) = load(tmp_path / name).metadata.values()
        assert (entry.expected_answer, entry.metadata) == (str(number), {"id": [number]})


def test_hugging_face_folder_is_read_as_a_dataset(tmp_path: Path, load: Load) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "one", "answer": "1"}\n{"prompt": "two", "answer": "2"}\n')
    loaded = load(f"hf:{tmp_path}")
    assert texts(loaded) == ["one", "two"]
    assert [entry.expected_answer for entry in loaded.metadata.values()] == ["1", "2"]


def test_missing_hugging_face_split_is_named(tmp_path: Path, load: Load) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "one"}\n')
    with pytest.raises(InputError, match=r"\[test\]"):
        load(f"hf:{tmp_path}[test]")
