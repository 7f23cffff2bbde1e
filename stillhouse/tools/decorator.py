"""`@tool`: makes a function something a model can call.

The schema shown to the model comes from the function's type hints and docstring, through pydantic, and the same
pydantic model validates and coerces what the model writes. Both are therefore compulsory, and checked when the file is
loaded rather than at the thousandth rollout.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, overload

from pydantic import ConfigDict, TypeAdapter, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

from stillhouse.errors import ConfigError
from stillhouse.tools.arguments import reader_of_model
from stillhouse.tools.context import ToolArgs
from stillhouse.tools.limits import Places, check_limits
from stillhouse.tools.sandbox import Source, source_of
from stillhouse.tools.signature import place_of, type_hints
from stillhouse.tools.tool import Tool, writer_of
from stillhouse.types import JsonObject, ToolSchema

_ARGUMENTS = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
_VERBATIM_KEYS = frozenset({"default", "enum", "const", "examples"})


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    timeout_s: float | None = None,
    max_concurrency: int | None = None,
    sandbox: bool = False,
    network: bool = False,
    files: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    timeout_s: float | None = None,
    max_concurrency: int | None = None,
    sandbox: bool = False,
    network: bool = False,
    files: Sequence[str] = (),
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a tool of a function whose parameters and result have type hints and that has a docstring.

    The whole docstring is what the model reads about the tool; `Annotated[int, Field(description="...")]` describes one
    argument. A result that is not a `str` reaches the model as JSON. A parameter annotated `ToolArgs` is filled in with
    the prompt's metadata and the environment variables that `tools.environment` names; the model never sees it. The
    schema allows no further arguments; where no parameter has a default, OpenAI's strict mode takes it.

    A plain function runs in a thread, an `async` one in an event loop that all tools share. Either is part of this
    process and can do what the process can: read every environment variable, stay behind in its thread after its
    time is up, end the run by a crash. With `sandbox=True` it runs in a jail instead.

    Args:
        function: plain or `async`; given when the decorator is written without parentheses.
        timeout_s: longest run of one call in seconds; None takes `tools.timeout_s` of the config.
        max_concurrency: most calls at once in this process, whatever the number of rollouts; waiting for a place does
            not count into the timeout. None sets no limit, or twice the number of cores for a sandboxed tool.
        sandbox: each call runs in a jail of its own, as `stillhouse.tools.sandbox` describes: limited, killed with all
            it started when its time is up, in an empty folder, without network, files of this machine, and environment
            variables but PATH, LANG, HOME and those of `tools.environment`. The function must stand at the top of a
            Python file, and what it imports when it is called must be an installed package.
        network: a sandboxed tool may use this machine's network, local services among it.
        files: files and folders that a sandboxed tool may read; relative paths begin at the folder of its Python file.

    Raises:
        ConfigError: the docstring or a type hint is missing, a type has no JSON form, the signature has `*args`,
            `**kwargs` or positional-only parameters, a limit is not above 0, or what the sandbox is to let through is
            missing; the message names function, file and line.
    """
    check_limits("tool", timeout_s=timeout_s, max_concurrency=max_concurrency)

    def decorate(decorated: Callable[..., Any]) -> Tool:
        try:
            source = source_of(decorated, sandbox=sandbox, network=network, files=files)
        except ValueError as error:
            raise _wrong(decorated, str(error)) from error
        return _make_tool(decorated, timeout_s, max_concurrency, source)

    return decorate if function is None else decorate(function)


def _make_tool(
    function: Callable[..., Any], timeout_s: float | None, max_concurrency: int | None, source: Source | None
) -> Tool:
    description = inspect.getdoc(function)
    if not description:
        raise _wrong(function, "it has no docstring; the docstring is what the model reads about the tool")
    try:
        hints = type_hints(function)
    except NameError as error:
        raise _wrong(function, f"a type hint names something unknown: {error}") from error
    if "return" not in hints:
        raise _wrong(function, "its result has no type hint; write `-> str` or another type with a JSON form")
    args_parameter = _args_parameter(function, hints)
    try:
        model = create_model(
            f"{function.__name__} arguments", __config__=_ARGUMENTS, **_fields(function, hints, args_parameter)
        )
        parameters = _ordered(_strict(model.model_json_schema()))
        result = TypeAdapter(hints["return"])
        result.json_schema(mode="serialization")
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError, NameError) as error:
        raise _wrong(function, f"a type of its signature has no JSON form: {error}") from error
    schema: ToolSchema = {
        "type": "function",
        "function": {"name": function.__name__, "description": description, "parameters": parameters},
    }
    return Tool(
        name=function.__name__,
        schema=schema,
        function=function,
        read_arguments=reader_of_model(model, parameters),
        write_result=writer_of(result),
        timeout_s=timeout_s,
        places=Places.of(max_concurrency, sandbox=source is not None),
        source=source,
        args_parameter=args_parameter,
    )


def _args_parameter(function: Callable[..., Any], hints: dict[str, Any]) -> str | None:
    names = [name for name, hint in hints.items() if hint is ToolArgs and name != "return"]
    if len(names) > 1:
        raise _wrong(function, f"parameters {' and '.join(names)} are both ToolArgs; one is enough")
    return names[0] if names else None


def _fields(function: Callable[..., Any], hints: dict[str, Any], args_parameter: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise _wrong(function, f"parameter {parameter} cannot be described to a model; name every parameter")
        if name not in hints:
            raise _wrong(function, f"parameter {name!r} has no type hint; write for instance `{name}: str`")
        if name != args_parameter:
            fields[name] = (hints[name], ... if parameter.default is parameter.empty else parameter.default)
    return fields


def _strict(schema: Any) -> Any:
    """`schema` whose objects take no further keys, and without the titles pydantic makes of Python names.

    A title tells the model nothing that the name does not, and costs tokens.
    """
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: JsonObject = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: _strict(item) for name, item in value.items()}
        elif key in _VERBATIM_KEYS:
            kept[key] = value
        elif key != "title":
            kept[key] = _strict(value)
    if "properties" in kept:
        kept.setdefault("additionalProperties", False)
    return kept


def _ordered(schema: JsonObject) -> JsonObject:
    """The usual key order of tool schemas: chat templates print them as they come, so order is part of the prompt."""
    first: JsonObject = {
        key: schema[key] for key in ("type", "properties", "required", "additionalProperties") if key in schema
    }
    return {**first, **{key: value for key, value in schema.items() if key not in first}}


def _wrong(function: Callable[..., Any], reason: str) -> ConfigError:
    return ConfigError(f"@tool {place_of(function)}: {reason}")
