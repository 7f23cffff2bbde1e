"""`@tool`: makes a function something a model can call.

The schema shown to the model is made by pydantic from the function's type hints and docstring, and the same pydantic
model validates and coerces what the model writes. Both are therefore required, and checked when the file is loaded.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

from stillhouse.errors import ConfigError
from stillhouse.tools.arguments import ReadArguments, reader_of_model
from stillhouse.tools.context import ToolArgs
from stillhouse.tools.results import written
from stillhouse.tools.running import ConcurrencyLimit, run_awaitable, validate_limits
from stillhouse.tools.sandbox import SandboxedFunction, sandboxed_function
from stillhouse.tools.user_file import describe_function, type_hints
from stillhouse.types import JsonObject, ToolSchema


@dataclass(frozen=True, eq=False, kw_only=True)
class Tool:
    """A function with its schema. Calling it calls the function without validation."""

    name: str
    schema: ToolSchema = field(repr=False)
    function: Callable[..., Any] = field(repr=False)
    read_arguments: ReadArguments = field(repr=False)
    """Validates and coerces what the model wrote."""
    write_result: Callable[[Any], str] = field(repr=False)
    """Turns what the function returns into what the model reads."""
    timeout_s: float | None = None
    """Time limit of one call in seconds; None takes the toolbox's."""
    max_characters: int | None = None
    """Length at which a result is cut; None takes the toolbox's."""
    concurrency: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(None), repr=False)
    sandboxed: SandboxedFunction | None = None
    """Where a sandbox finds it; None if it runs in this process."""
    args_parameter: str | None = None
    """Name of the parameter that gets `ToolArgs`, if any."""
    scope_parameter: str | None = None
    """Name of the parameter that gets the `RolloutScope`, if any."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def serve(self, payload: JsonObject) -> str:
        """Run a call inside a sandbox: `payload` has its `arguments` as the model wrote them, and `tool_args`."""
        kwargs = self.read_arguments(payload["arguments"])
        if self.args_parameter is not None:
            kwargs[self.args_parameter] = ToolArgs(**payload["tool_args"])
        return self.write_result(run_awaitable(self.function(**kwargs)))


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
    """Make a tool of a function whose parameters and result have type hints and that has a docstring.

    The docstring is the tool's description for the model; `Annotated[int, Field(description="...")]` describes an
    argument. A result that is not a `str` reaches the model as JSON. A parameter annotated `ToolArgs` is filled in and
    never shown to the model. The schema allows no further arguments; if no parameter has a default, it fits OpenAI's
    strict mode.

    A plain function runs in a thread, an `async` one in an event loop that all tools share. Either can do what this
    process can: read every environment variable, keep its thread after a timeout, end the run by a crash. With
    `sandbox=True` it runs in a jail instead.

    Args:
        function: plain or `async`; given when the decorator is written without parentheses.
        timeout_s: time limit of one call in seconds; None takes `tools.timeout_s` of the config.
        max_concurrency: most simultaneous calls in this process, over all rollouts; waiting for a slot does not count
            into the timeout. None sets no limit, or twice the number of cores for a sandboxed tool.
        sandbox: each call runs in a jail of its own, as `stillhouse.tools.sandbox` describes. The function must be at
            the top level of a Python file, and what it imports when called must be an installed package.
        network: a sandboxed tool may use this machine's network, including local services.
        files: files and folders a sandboxed tool may read; relative paths start at the folder of its Python file.

    Raises:
        ConfigError: the docstring or a type hint is missing, a type has no JSON form, the signature has `*args`,
            `**kwargs` or positional-only parameters, a limit is not positive, or a file in `files` does not exist; the
            message names function, file and line.
    """
    validate_limits("tool", timeout_s=timeout_s, max_concurrency=max_concurrency)

    def decorate(decorated: Callable[..., Any]) -> Tool:
        try:
            sandboxed = sandboxed_function(decorated, sandbox=sandbox, network=network, files=files)
            return _make_tool(decorated, timeout_s, max_concurrency, sandboxed)
        except ValueError as error:
            raise ConfigError(f"@tool {describe_function(decorated)}: {error}") from error

    return decorate if function is None else decorate(function)


def _make_tool(
    function: Callable[..., Any],
    timeout_s: float | None,
    max_concurrency: int | None,
    sandboxed: SandboxedFunction | None,
) -> Tool:
    description = inspect.getdoc(function)
    if not description:
        raise ValueError("it has no docstring; the docstring is what the model reads about the tool")
    hints = type_hints(function)
    if "return" not in hints:
        raise ValueError("its result has no type hint; write `-> str` or another type with a JSON form")
    args_parameters = [name for name, hint in hints.items() if hint is ToolArgs and name != "return"]
    if len(args_parameters) > 1:
        raise ValueError(f"parameters {' and '.join(args_parameters)} are both ToolArgs; one is enough")
    fields, names = _fields(function, hints)
    try:
        model = create_model(f"{function.__name__} arguments", __config__=_ARGUMENTS, **fields)
        parameters = _ordered(_strict(model.model_json_schema()))
        result = TypeAdapter(hints["return"])
        result.json_schema(mode="serialization")
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError, NameError) as error:
        # Without what to set in a pydantic model of one's own.
        problem = str(error).partition(". Set `")[0]
        raise ValueError(f"a type of its signature has no JSON form: {problem}") from error
    return Tool(
        name=function.__name__,
        schema={
            "type": "function",
            "function": {"name": function.__name__, "description": description, "parameters": parameters},
        },
        function=function,
        read_arguments=reader_of_model(model, names, parameters),
        write_result=lambda value: written(value, result),
        timeout_s=timeout_s,
        concurrency=ConcurrencyLimit.of(max_concurrency, sandbox=sandboxed is not None),
        sandboxed=sandboxed,
        args_parameter=args_parameters[0] if args_parameters else None,
    )


def _fields(function: Callable[..., Any], hints: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return pydantic's fields of the parameters that the model fills in, and the parameters' names by field."""
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"parameter {parameter} cannot be described to a model; name every parameter")
        if name not in hints:
            raise ValueError(f"parameter {name!r} has no type hint; write for instance `{name}: str`")
        field_name, hint = name, hints[name]
        if hint is ToolArgs:
            continue
        if name.startswith(("_", "model_")) or hasattr(BaseModel, name):
            # Pydantic gives such a field another meaning, but not its alias.
            field_name, hint = f"argument_{len(fields)}_{name}", Annotated[hint, Field(alias=name)]
        fields[field_name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
        names[field_name] = name
    return fields, names


def _strict(schema: Any) -> Any:
    """Return `schema` without additional properties and pydantic's titles, which repeat names and cost tokens."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: JsonObject = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: _strict(item) for name, item in value.items()}
        elif key != "title":
            kept[key] = value if key in _VERBATIM_KEYS else _strict(value)
    if "properties" in kept:
        kept.setdefault("additionalProperties", False)
    return kept


def _ordered(schema: JsonObject) -> JsonObject:
    """Return the schema in the usual order of keys: chat templates print it verbatim, as part of the prompt."""
    usual = ("type", "properties", "required", "additionalProperties")
    return {**{key: schema[key] for key in usual if key in schema}, **schema}
