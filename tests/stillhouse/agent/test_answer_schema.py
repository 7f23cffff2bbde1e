from typing import Any

import pytest

from stillhouse.agent.answer_schema import AnswerSchema
from stillhouse.errors import ConfigError
from stillhouse.types import Message

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/item"}}, "kind": {"enum": ["a", "b"]}},
    "required": ["items"],
    "additionalProperties": False,
    "$defs": {"item": {"type": "object", "properties": {"price": {"type": "number", "minimum": 0}}}},
}


def problem(content: Any, schema: dict[str, Any] = SCHEMA, **keys: Any) -> str | None:
    answer: Message = {"role": "assistant", "content": content, **keys}  # type: ignore[typeddict-item]
    return AnswerSchema(schema).problem(answer)


def test_an_answer_that_meets_the_schema_has_no_problem() -> None:
    assert problem('{"items": [{"price": 2}], "kind": "a"}') is None
    assert problem([{"type": "text", "text": '{"items":'}, {"type": "text", "text": " []}"}]) is None


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('{"items": [{"price": 1}, {"price": "2"}]}', ["at $.items[1].price", 'saw "2"', '{"type":"number"}']),
        ('{"items": [{"price": -1}]}', ["at $.items[0].price", "saw -1", '{"minimum":0}']),
        ('{"items": [], "kind": "c"}', ["at $.kind", 'saw "c"', '{"enum":["a","b"]}']),
        ("{}", ["at $:", "'items'", '{"required":["items"]}']),
        ('{"items": [], "more": 1}', ["at $:", "'more'", '{"additionalProperties":false}']),
        ("```json\n{}\n```", ["not JSON", "```json"]),
        ('{"items": [', ["not JSON", "line 1 column"]),
        ('{"items": [NaN]}', ["not JSON"]),
        ('{"items": [], "items": [1]}', ["two values under one key"]),
        ("", ["the answer is empty"]),
        (None, ["the answer is empty"]),
    ],
)
def test_a_problem_names_place_value_and_what_was_expected(content: Any, parts: list[str]) -> None:
    text = problem(content)
    assert text is not None
    assert all(part in text for part in parts), text


def test_of_many_problems_the_first_are_shown_and_the_rest_counted() -> None:
    text = problem('{"items": [' + ", ".join(['{"price": "x"}'] * 9) + "]}")
    assert text is not None
    assert text.count("$.items[") == 5
    assert text.endswith("and 4 more")


def test_the_closest_miss_of_a_choice_a_part_of_a_huge_value_and_a_refusal_are_shown() -> None:
    schema = {"anyOf": [{"type": "object", "properties": {"n": {"type": "integer"}}}, {"type": "null"}]}
    assert "at $.n" in str(problem('{"n": "one"}', schema))
    assert len(str(problem('{"items": [{"price": "' + "x" * 10_000 + '"}]}'))) < 500
    assert 'refusal: "I cannot."' in str(problem(None, refusal="I cannot."))


def test_an_answer_nested_beyond_measure_is_a_problem_not_a_crash() -> None:
    nested: dict[str, Any] = {"type": "array", "items": {"$ref": "#"}}
    assert problem("[" * 900 + "]" * 900, nested) is not None
    assert "not JSON" in str(problem("[" * 100_000, nested))


def test_a_correction_says_what_is_wrong_and_shows_the_schema() -> None:
    message = AnswerSchema({"type": "integer"}).correction("the answer is empty")
    assert message["role"] == "user"
    assert "the answer is empty" in str(message["content"])
    assert '{"type":"integer"}' in str(message["content"])


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "objekt"}, r"\$\.type"),
        ({"properties": {"a": {"$ref": "https://example.org/schema.json"}}}, "https://example.org"),
        ({"properties": {"a": {"$ref": "#/$defs/missing"}}}, "#/\\$defs/missing"),
    ],
)
def test_a_schema_that_cannot_be_checked_against_is_a_config_error(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        AnswerSchema(schema)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"content": '```json\n{"items": []}\n```'}, {"content": '{"items": []}'}),
        ({"content": ' ```\n{"items": [],\n "kind": "a"}```\n'}, {"content": '{"items": [],\n "kind": "a"}'}),
        ({"content": "```json\n{}\n```", "reasoning_content": "none"}, None),
        (
            {"content": '```json\n{"items": []}\n```', "reasoning": "none"},
            {"content": '{"items": []}', "reasoning": "none"},
        ),
        ({"content": "", "reasoning_content": '{"items": []}'}, {"content": '{"items": []}'}),
        ({"reasoning": '{"items": []}'}, {"content": '{"items": []}'}),
        ({"content": "", "reasoning_content": 'First {"items": []}.'}, None),
        ({"content": 'Here it is: {"items": []}'}, None),
        ({"content": '```json\n{"items": []}\n```\n```json\n{"items": []}\n```'}, None),
        ({"content": '```json\n{"items": []}\n```', "tool_calls": [{}]}, None),
        ({"content": '{"items": []}\n'}, None),
    ],
)
def test_a_fence_is_taken_off_an_answer_that_meets_the_schema_and_nothing_else_is_changed(
    written: dict[str, Any], kept: dict[str, Any] | None
) -> None:
    message: Message = {"role": "assistant", **written}  # type: ignore[typeddict-item]
    assert AnswerSchema(SCHEMA).bare(message) == {"role": "assistant", **(written if kept is None else kept)}
