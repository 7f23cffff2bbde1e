"""`@tool`: makes a function something a model can call.

The schema shown to the model comes from the function's type hints and docstring, through pydantic, and the same
pydantic model validates and coerces what the model writes. Both are therefore compulsory, and checked when the file is
loaded rather than at the thousandth rollout.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

from stillhouse.errors import ConfigError
from stillhouse.types import JsonObject, ToolSchema

_ARGUMENTS = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
_VERBATIM_KEYS = frozenset({"default", "enum", "const", "examples"})


@dataclass(frozen=True, eq=False)
class Tool:
    """A function with its schema. Calling it calls the function, unvalidated, as Python code expects."""

    name: str
    function: Callable[..., Any] = field(repr=False)
    arguments: type[BaseModel] = field(repr=False)
    """Validates and coerces what the model wrote."""
    result: TypeAdapter[Any] = field(repr=False)
    """Turns what the function returns into JSON."""
    schema: ToolSchema = field(repr=False)
    timeout_s: float | None
    """Longest run of one call in seconds; None leaves it to the toolbox."""

    @property
    def is_async(self) -> bool:
        """True where the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(*, timeout_s: float | None = None) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, *, timeout_s: float | None = None
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a tool of a function whose parameters and result have type hints and that has a docstring.

    The whole docstring is what the model reads about the tool; `Annotated[int, Field(description="...")]` describes one
    argument. A result that is not a `str` reaches the model as JSON.

    Args:
        function: plain or `async`; given when the decorator is written without parentheses.
        timeout_s: longest run of one call in seconds; None takes `tools.timeout_s` of the config.

    Raises:
        ConfigError: the docstring or a type hint is missing, a type has no JSON form, or the signature has `*args`,
            `**kwargs` or positional-only parameters; the message names function, file and line.
    """
    if timeout_s is not None and timeout_s <= 0:
        raise ConfigError(f"@tool(timeout_s={timeout_s!r}): expected a number of seconds above 0, or None")
    if function is None:
        return lambda decorated: _make_tool(decorated, timeout_s)
    return _make_tool(function, timeout_s)


def _make_tool(function: Callable[..., Any], timeout_s: float | None) -> Tool:
    description = inspect.getdoc(function)
    if not description:
        raise _wrong(function, "it has no docstring; the docstring is what the model reads about the tool")
    hints = _type_hints(function)
    if "return" not in hints:
        raise _wrong(function, "its result has no type hint; write `-> str` or another type with a JSON form")
    try:
        arguments = create_model(
            f"{function.__name__} arguments", __config__=_ARGUMENTS, **_argument_fields(function, hints)
        )
        parameters = _ordered(_without_titles(arguments.model_json_schema()))
        result = TypeAdapter(hints["return"])
        result.json_schema(mode="serialization")
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError, NameError) as error:
        raise _wrong(function, f"a type of its signature has no JSON form: {error}") from error
    schema: ToolSchema = {
        "type": "function",
        "function": {"name": function.__name__, "description": description, "parameters": parameters},
    }
    return Tool(function.__name__, function, arguments, result, schema, timeout_s)


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise _wrong(function, f"a type hint names something unknown: {error}") from error


def _argument_fields(function: Callable[..., Any], hints: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise _wrong(function, f"parameter {parameter} cannot be described to a model; name every parameter")
        if name not in hints:
            raise _wrong(function, f"parameter {name!r} has no type hint; write for instance `{name}: str`")
        fields[name] = (hints[name], ... if parameter.default is parameter.empty else parameter.default)
    return fields


def _without_titles(schema: Any) -> Any:
    """`schema` without the titles pydantic makes of Python names: tokens that tell the model nothing."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: JsonObject = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: _without_titles(item) for name, item in value.items()}
        elif key in _VERBATIM_KEYS:
            kept[key] = value
        elif key != "title":
            kept[key] = _without_titles(value)
    return kept


def _ordered(schema: JsonObject) -> JsonObject:
    """The usual key order of tool schemas: chat templates print them as they come, so order is part of the prompt."""
    first: JsonObject = {
        key: schema[key] for key in ("type", "properties", "required", "additionalProperties") if key in schema
    }
    return {**first, **{key: value for key, value in schema.items() if key not in first}}


def _wrong(function: Callable[..., Any], reason: str) -> ConfigError:
    code = getattr(function, "__code__", None)
    place = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
    return ConfigError(f"@tool {getattr(function, '__name__', function)!s}{place}: {reason}")
