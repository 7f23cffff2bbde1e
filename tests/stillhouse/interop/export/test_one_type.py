import json
from pathlib import Path
from typing import Any

import pyarrow.json
import pytest

from stillhouse.interop.export.files import mixed_columns, with_text


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
