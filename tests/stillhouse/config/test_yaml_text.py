from typing import Any

import pytest

from stillhouse.config.yaml_text import read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("-1E5", -1e5),
        (".5e+3", 500.0),
        ("[1.e2, {a: 2e-4}]", [100.0, {"a": 2e-4}]),
        ("'1e-5'", "1e-5"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("1e-5x", "1e-5x"),
        ("- &a {x: 1, y: 2}\n- {<<: *a, x: 3}", [{"x": 1, "y": 2}, {"x": 3, "y": 2}]),
        ("", None),
    ],
)
def test_numbers_are_those_of_json_and_merged_mappings_may_be_overridden(text: str, value: Any) -> None:
    assert read_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: 1\nb: 2\na: 3", ["`a`", "line 1", "line 3, column 1"]),
        ("- {b: {c: 1, c: 1}}", ["`c`", "line 1, column 14"]),
        ("key: sk-1: 2", ["line 1, column 10", "in quotes"]),
        ("a: \x00", ["character"]),
    ],
)
def test_a_wrong_document_is_refused_by_place_and_remedy_without_its_text(text: str, parts: list[str]) -> None:
    with pytest.raises(ValueError, match=parts[-1]) as caught:
        read_yaml(text)
    for part in parts:
        assert part in str(caught.value)
    assert "sk-" not in str(caught.value)
    assert caught.value.__suppress_context__
