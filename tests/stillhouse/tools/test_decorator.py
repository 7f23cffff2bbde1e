import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from stillhouse.errors import ConfigError
from stillhouse.sandbox.jail import Permissions
from stillhouse.tools import ToolArgs, Toolbox, tool


def test_schema_comes_from_hints_and_docstring_in_the_usual_key_order() -> None:
    @tool
    def weather(city: str, days: Annotated[int, Field(description="How many days.", ge=1)] = 1) -> str:
        """The weather forecast for a city."""
        return f"{city} {days}"

    assert json.dumps(weather.schema) == json.dumps(
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather forecast for a city.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "days": {"default": 1, "description": "How many days.", "minimum": 1, "type": "integer"},
                    },
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        }
    )


def test_an_argument_called_title_and_a_title_in_a_default_survive() -> None:
    @tool
    def publish(title: str, extra: dict[str, str] = {"title": "x"}, kind: Literal["a", "b"] = "a") -> None:  # noqa: B006
        """Publish a page."""

    properties = publish.schema["function"]["parameters"]["properties"]
    assert properties["title"] == {"type": "string"}
    assert properties["extra"]["default"] == {"title": "x"}
    assert properties["kind"]["enum"] == ["a", "b"]


def test_a_tool_is_still_a_function_and_the_injected_argument_is_not_in_its_schema() -> None:
    @tool(timeout_s=3.0)
    def lookup(args: ToolArgs, city: str) -> str:
        """Look a city up."""
        return city

    assert list(lookup.schema["function"]["parameters"]["properties"]) == ["city"]
    assert lookup.args_parameter == "args"
    assert lookup.timeout_s == 3.0
    assert lookup(ToolArgs(), "Rome") == "Rome"


class Stop(BaseModel):
    place: str
    minutes: int


def required_keys_everywhere(schema: object) -> bool:
    """Return whether OpenAI's strict mode takes the schema: https://platform.openai.com/docs/guides/structured-outputs."""
    if isinstance(schema, list):
        return all(map(required_keys_everywhere, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" and (
        schema.get("additionalProperties") is not False
        or sorted(schema.get("required", [])) != sorted(schema.get("properties", {}))
    ):
        return False
    return "default" not in schema and all(map(required_keys_everywhere, schema.values()))


def test_a_function_without_defaults_has_a_schema_that_strict_mode_takes() -> None:
    @tool
    def travel(stops: list[Stop], by: Literal["train", "bus"] | None, seats: dict[str, int] | None = None) -> str:
        """Plan a journey."""
        return ""

    @tool
    def travel_strictly(stops: list[Stop], by: Literal["train", "bus"] | None) -> str:
        """Plan a journey."""
        return ""

    assert not required_keys_everywhere(travel.schema["function"]["parameters"])
    assert required_keys_everywhere(travel_strictly.schema["function"]["parameters"])


@pytest.mark.parametrize("name", ["_x", "__x", "model_config", "model_extra", "model_dump", "schema", "json", "self"])
def test_an_argument_may_have_a_name_that_pydantic_keeps_for_itself(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(
        f'def say({name}: int, other: str = "d") -> str:\n    """Says it."""\n    return f"{{{name}}} {{other}}"',
        namespace,
    )
    say = tool(namespace["say"])
    parameters = say.schema["function"]["parameters"]
    assert parameters["properties"] == {name: {"type": "integer"}, "other": {"default": "d", "type": "string"}}
    assert parameters["required"] == [name]
    toolbox = Toolbox([say])
    assert asyncio.run(toolbox.call("say", json.dumps({name: "5"}))).content == "5 d"
    assert f"{name}: Input should be" in asyncio.run(toolbox.call("say", json.dumps({name: "five"}))).content
    assert (
        "no such argument" in asyncio.run(toolbox.call("say", json.dumps({name: 5, f"argument_0_{name}": 5}))).content
    )


def documented() -> str:
    """Documented."""
    return ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"max_concurrency": 0}, "max_concurrency=0"),
        ({"network": True}, "sandbox=True"),
        ({"sandbox": True, "files": ["nothing.txt"]}, r"nothing\.txt"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tool(**options)(documented)


def test_a_sandbox_needs_a_function_and_files_that_can_be_found_again() -> None:
    def inner() -> str:
        """Documented."""
        return ""

    with pytest.raises(ConfigError, match="inner"):
        tool(sandbox=True)(inner)
    source = tool(sandbox=True, files=["test_decorator.py"])(documented).sandboxed
    assert source is not None
    assert source.permissions == Permissions(network=False, files=(str(Path(__file__).absolute()),))


class NotJson:
    pass


def no_docstring(a: int) -> int:
    return a


def no_hint(a) -> int:  # type: ignore[no-untyped-def]
    """Documented."""
    return a


def no_result(a: int):  # type: ignore[no-untyped-def]
    """Documented."""
    return a


def var_args(*numbers: int) -> int:
    """Documented."""
    return sum(numbers)


def var_kwargs(**numbers: int) -> int:
    """Documented."""
    return len(numbers)


def positional_only(a: int, /) -> int:
    """Documented."""
    return a


def unserialisable(a: int) -> NotJson:
    """Documented."""
    return NotJson()


def iterator(a: int) -> Iterator[int]:
    """Documented."""
    yield a


def two_contexts(first: ToolArgs, second: ToolArgs) -> int:
    """Documented."""
    return 1


def unknown_hint(a: "Nowhere") -> int:  # type: ignore[name-defined]  # noqa: F821
    """Documented."""
    return 1


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        (no_docstring, "no docstring"),
        (no_hint, "'a' "),
        (no_result, "result"),
        (var_args, "name every parameter"),
        (var_kwargs, "name every parameter"),
        (positional_only, "name every parameter"),
        (unserialisable, "no JSON form"),
        (two_contexts, "ToolArgs"),
        (unknown_hint, "something unknown"),
        (iterator, r"Iterator\[int\]$"),
    ],
)
def test_a_function_that_cannot_be_described_is_refused_by_name_and_line(function, missing) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=missing) as caught:
        tool(function)
    assert function.__name__ in str(caught.value)
    assert f"{__file__}, line {function.__code__.co_firstlineno}" in str(caught.value)
