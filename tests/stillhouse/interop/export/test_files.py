import json
from pathlib import Path
from typing import Any

import pyarrow.json
import pyarrow.parquet as pq
import pytest

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.dataset.read import read_file, read_rows
from stillhouse.dataset.schema import COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.errors import ConfigError, InputError, StoreError
from stillhouse.interop.export import Form, export_dataset
from stillhouse.interop.export.files import mixed_columns, with_text


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_openai_lines_have_only_the_keys_that_openai_names_and_arguments_as_the_model_spelt_them(
    dataset: Path, tmp_path: Path
) -> None:
    assert export_dataset(dataset, tmp_path / "out.jsonl", "openai").num_rows == 4
    plain, line, *_ = lines(tmp_path / "out.jsonl")
    assert plain == {"messages": [{"role": "user", "content": "2 + 3, 4 + 5?"}, {"role": "assistant", "content": "14"}]}
    assert line["tools"] == [CALCULATOR_SCHEMA]
    assert line["messages"][2] == {
        "role": "assistant",
        "content": "Two sums.",
        "tool_calls": [
            {"id": f"call_{number}", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
            for number, arguments in enumerate(['{"expression":"2+3"}', '{"expression": "4+5"}'])
        ],
    }
    assert line["messages"][3] == {"role": "tool", "tool_call_id": "call_0", "content": "5"}


def test_rnow_lines_name_their_tools_and_a_prompt_cannot_pass_for_the_teacher(dataset: Path, tmp_path: Path) -> None:
    export_dataset(dataset, tmp_path / "out.jsonl", "rnow")
    plain, line, *_ = lines(tmp_path / "out.jsonl")
    assert "tools" not in plain
    assert line["tools"] == ["calculator"]
    assert line["metadata"] == {
        "level": 3, "teacher": "teacher-1", "turns": 2, "expected_answer": "5, 9", "tag": "sums", "verified": True,
    }  # fmt: skip
    assert line["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"expression":"2+3"}'


def test_rnow_lines_are_rows_of_its_own_model(dataset: Path, tmp_path: Path, rnow_models: Any) -> None:
    export_dataset(dataset, tmp_path / "out.jsonl", "rnow")
    rows = lines(tmp_path / "out.jsonl")
    assert all(isinstance(message["content"], str) for row in rows for message in row["messages"])
    for row in rows:
        rnow_models.TrainEntry.model_validate(row)


def test_jsonl_lines_have_the_schemas_of_openai_and_the_metadata_of_rnow(dataset: Path, tmp_path: Path) -> None:
    written = {}
    forms: tuple[Form, ...] = ("jsonl", "openai", "rnow")
    for form in forms:
        export_dataset(dataset, tmp_path / f"{form}.jsonl", form)
        written[form] = lines(tmp_path / f"{form}.jsonl")
    pairs = zip(written["openai"], written["rnow"], strict=True)
    assert written["jsonl"] == [{**openai, "metadata": rnow["metadata"]} for openai, rnow in pairs]


def test_what_a_form_has_no_place_for_is_counted(dataset: Path, tmp_path: Path) -> None:
    assert export_dataset(dataset, tmp_path / "a.jsonl", "openai").lost == {"reasoning": 3}
    exported = export_dataset(dataset, tmp_path / "b.jsonl", "sharegpt")
    assert exported.lost == {"reasoning": 3, "text beside calls": 3}
    assert str(exported) == (
        "4 rows; the form has no place for these, of messages: reasoning in 3, text beside calls in 3"
    )
    assert export_dataset(dataset, tmp_path / "c.parquet", "parquet").lost == {}


def test_sharegpt_speakers_alternate_and_calls_are_json(dataset: Path, tmp_path: Path) -> None:
    export_dataset(dataset, tmp_path / "out.jsonl", "sharegpt")
    plain, line, *_ = lines(tmp_path / "out.jsonl")
    assert plain == {"conversations": [{"from": "human", "value": "2 + 3, 4 + 5?"}, {"from": "gpt", "value": "14"}]}
    assert [turn["from"] for turn in line["conversations"]] == ["human", "function_call", "observation", "gpt"]
    assert json.loads(line["conversations"][1]["value"]) == [
        {"name": "calculator", "arguments": {"expression": "2+3"}},
        {"name": "calculator", "arguments": {"expression": "4+5"}},
    ]
    assert line["conversations"][2]["value"] == "5\n</tool_response>\n<tool_response>\n9"
    assert (line["system"], json.loads(line["tools"])) == ("Be brief.", [CALCULATOR_SCHEMA["function"]])


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        ({"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}, "f", {"a": 1}),
        ({"id": "c", "function": {"name": "f"}}, "f", {}),
        ({"id": "c", "function": None}, "", {}),
    ],
)
def test_a_call_that_an_endpoint_wrote_otherwise_is_exported_with_what_it_says(
    dataset: Path, tmp_path: Path, call: Any, name: str, arguments: Any
) -> None:
    message = json.dumps({"role": "assistant", "content": None, "tool_calls": [call]})
    with TableWriter(dataset / "train.parquet", COLUMNS) as writer:
        odd = {"messages": [message], "tools": [], "metadata": "{}", "arguments": [None]}
        writer.write({column.name: None for column in COLUMNS} | odd)
    for form in ("openai", "sharegpt"):
        export_dataset(dataset, tmp_path / form, form, splits=["train"])
    ((openai,), (sharegpt,)) = lines(tmp_path / "openai"), lines(tmp_path / "sharegpt")
    function = openai["messages"][0]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == (name, arguments)
    assert json.loads(sharegpt["conversations"][0]["value"]) == {"name": name, "arguments": arguments}


def test_parquet_holds_the_rows_of_all_splits_with_all_columns(dataset: Path, tmp_path: Path) -> None:
    assert export_dataset(dataset, tmp_path / "out.parquet", "parquet", splits=["validation", "train"]).num_rows == 4
    assert pq.read_schema(tmp_path / "out.parquet").equals(pq.read_schema(dataset / "train.parquet"))
    expected = [*read_rows(dataset, "validation"), *read_rows(dataset, "train")]
    assert list(read_file(tmp_path / "out.parquet")) == expected


@pytest.mark.parametrize("form", ["openai", "rnow", "sharegpt", "parquet"])
def test_an_export_again_gives_the_same_bytes(dataset: Path, tmp_path: Path, form: Any) -> None:
    export_dataset(dataset, tmp_path / "out", form)
    before = (tmp_path / "out").read_bytes()
    export_dataset(dataset, tmp_path / "out", form)
    assert (tmp_path / "out").read_bytes() == before


def test_a_row_that_does_not_fit_is_named_and_what_was_there_stays(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("before")
    row = next(read_rows(dataset, "train"))
    with TableWriter(dataset / "validation.parquet", COLUMNS) as writer:
        odd = {"messages": ['{"role":"narrator","content":"x"}'], "tools": [], "metadata": "{}", "arguments": []}
        writer.write({column.name: None for column in COLUMNS} | {"id": row["id"]} | odd)
    with pytest.raises(InputError, match=r"row 0 .*openai: KeyError: 'narrator'"):
        export_dataset(dataset, tmp_path / "out.jsonl", "openai")
    assert (tmp_path / "out.jsonl").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"dataset", "out.jsonl"}


@pytest.mark.parametrize("form", ["openai", "parquet", "hf"])
def test_a_folder_that_is_no_dataset_is_named(tmp_path: Path, form: Any) -> None:
    with pytest.raises(InputError, match=r"train\.parquet"):
        export_dataset(tmp_path, tmp_path / "out", form)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for form in ("openai", "hf"):
        with pytest.raises(StoreError, match="cannot be written"):
            export_dataset(dataset, tmp_path / "file" / "out", form)


@pytest.mark.parametrize("form", ["openai", "parquet"])
def test_a_folder_is_no_place_for_a_file(
    dataset: Path, tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"--output \. .*{form}"):
        export_dataset(dataset, Path("."), form)


def schema(kind: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "string", "default": 3 if kind == "a" else "three"}}}
    return {"type": "function", "function": {"name": kind, "parameters": parameters}}


@pytest.mark.parametrize(
    ("values", "is_mixed"),
    [
        ([3, 3.5, None], False),
        (["a", None, "2026-01-01"], False),
        ([3, "three"], True),
        ([["a"], "a"], True),
        ([["a"], ["b", 2]], True),
        ([{"x": 1}, {"y": "b"}, {}], False),
        ([{"x": 1}, {"x": "b"}], True),
        ([True, 1], True),
        ([1, 1 << 70], True),
    ],
)
def test_columns_of_several_types_become_text_that_arrow_reads(
    tmp_path: Path, values: list[Any], is_mixed: bool
) -> None:
    lines = [{"messages": [], "metadata": {"value": value, "name": "n"}} for value in values if value != 1 << 70]
    assert (mixed_columns([{"metadata": {"value": value}} for value in values]) == {"value"}) is is_mixed
    mixed = mixed_columns(lines)
    written = [with_text(line, mixed) for line in lines]
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    assert pyarrow.json.read_json(tmp_path / "out.jsonl").num_rows == len(lines)
    for line, value in zip(written, values, strict=False):
        seen = line["metadata"]["value"]
        assert value in (seen, json.loads(seen) if isinstance(seen, str) and seen != value else None)


def test_schemas_of_tools_that_no_single_type_holds_are_text(tmp_path: Path) -> None:
    lines = [{"metadata": {}, "tools": [schema(kind)]} for kind in "ab"] + [{"metadata": {}}]
    assert mixed_columns(lines) == {"tools"}
    written = [with_text(line, {"tools"}) for line in lines]
    assert [json.loads(line["tools"]) for line in written[:2]] == [line["tools"] for line in lines[:2]]
    assert "tools" not in written[2]
    assert mixed_columns(written) == frozenset()
