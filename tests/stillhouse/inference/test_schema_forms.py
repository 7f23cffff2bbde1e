from typing import Any

import pytest

from stillhouse.config import Criterion
from stillhouse.dataset.judge import judgement_schema
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.providers import provider_of
from stillhouse.inference.schema_forms import CLOSED, OPEN, Misfit, SchemaForm

STRING = {"type": "string"}


def of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return of(properties, required=list(properties), additionalProperties=False, **more)


@pytest.mark.parametrize(
    ("schema", "fitted"),
    [
        (
            of({"a": STRING, "b": STRING}, required=["b"]),
            {**closed({"a": STRING, "b": STRING}), "required": ["b", "a"]},
        ),
        (of({"a": of({"b": STRING})}), closed({"a": closed({"b": STRING})})),
        (
            of({"n": {"type": "integer", "minimum": 0, "maximum": 5, "description": "A grade."}}),
            closed({"n": {"type": "integer", "description": "A grade. (minimum: 0, maximum: 5)"}}),
        ),
        (
            of({"n": {"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 3}}),
            closed(
                {
                    "n": {
                        "type": "array",
                        "items": {"type": "string", "description": "(minLength: 2)"},
                        "description": "(minItems: 3)",
                    }
                }
            ),
        ),
        (
            of({"n": {"$ref": "#/$defs/kind", "description": "Which."}}, **{"$defs": {"kind": {"enum": ["x"]}}}),
            closed({"n": {"enum": ["x"], "description": "Which."}}),
        ),
        (of({"n": {"allOf": [STRING], "title": "N"}}, title="T"), closed({"n": STRING})),
        (of({"n": {"oneOf": [STRING, {"const": 1}]}}), closed({"n": {"anyOf": [STRING, {"enum": [1]}]}})),
        (of({"title": STRING, "default": STRING}), closed({"title": STRING, "default": STRING})),
        (of({"n": {"type": ["object", "null"], "properties": {}}}), None),
    ],
)
def test_a_closed_form_requires_all_keys_and_says_in_words_what_it_leaves_out(
    schema: dict[str, Any], fitted: dict[str, Any] | None
) -> None:
    made = CLOSED.of(schema)
    if fitted is not None:
        assert made == fitted
    assert CLOSED.of(made) == made


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (of({"a": {"type": "object"}}), r"at \$\.a "),
        (of({"a": of({}, additionalProperties=True)}), r"at \$\.a "),
        (of({}, additionalProperties={"type": "integer"}), r"at \$ "),
        (of({"b": STRING}, patternProperties={"^x": STRING}), r"at \$ "),
        (of({"a": {"type": "array", "items": {"$ref": "#"}}}), r"at \$\.a\[\]\.a\[\] .*itself"),
    ],
)
def test_a_schema_that_would_mean_something_else_is_refused_with_the_place(
    schema: dict[str, Any], message: str
) -> None:
    with pytest.raises(Misfit, match=message):
        CLOSED.of(schema)


@pytest.mark.parametrize(
    ("schema", "fitted"),
    [
        ({"type": "object"}, of({})),
        (of({"a": {"type": ["string", "null"]}}, additionalProperties=False), of({"a": {**STRING, "nullable": True}})),
        (
            of({"a": {"anyOf": [STRING, {"type": "null"}], "default": None}}, **{"$schema": "x"}),
            of({"a": {**STRING, "description": "(default: null)", "nullable": True}}),
        ),
        (of({"a": {"type": "array"}}), of({"a": {"type": "array", "items": {}}})),
        (
            of({"a": {"enum": [1, 2], "type": "integer"}}),
            of({"a": {"type": "integer", "description": "(one of [1,2])"}}),
        ),
    ],
)
def test_an_open_form_is_what_function_declarations_hold(schema: dict[str, Any], fitted: dict[str, Any]) -> None:
    assert OPEN.of(schema) == fitted


def test_a_tool_without_parameters_gets_an_object_without_properties() -> None:
    tool: Any = {"type": "function", "function": {"name": "now", "description": "The time."}}
    [made] = OPEN.of_tools([tool])
    assert made["function"] == {**tool["function"], "parameters": of({})}
    assert "parameters" not in tool["function"]


def known_form(url: str) -> SchemaForm | None:
    return provider_of(Endpoint(url, "m", "m")).answer_form


@pytest.mark.parametrize("host", ["api.openai.com", "x.openai.azure.com"])
def test_what_openai_takes_is_sent_there_as_it_is_so_that_open_batches_are_found(host: str) -> None:
    form = known_form(f"https://{host}/v1")
    assert form is not None
    schema = judgement_schema([Criterion(name="clarity", question="?")], verdict=True)
    assert form.of(schema) == schema
    recursive = closed({"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, **{"$defs": {"n": closed({})}})
    assert form.of(recursive) == recursive


def test_only_known_sellers_get_another_form_unasked() -> None:
    assert known_form("https://api.anthropic.com/v1") == CLOSED
    assert known_form("https://openrouter.ai/api/v1") is None
    assert known_form("https://notopenai.com/v1") is None
