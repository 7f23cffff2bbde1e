"""A tool: a function, the schema a model is shown, and what it takes to run a call."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import TypeAdapter

from stillhouse.tools.arguments import ReadArguments, reader_of_schema
from stillhouse.tools.context import RolloutScope, ToolArgs
from stillhouse.tools.limits import ConcurrencyLimit
from stillhouse.tools.sandbox import SandboxedFunction
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
    """Time limit of one call in seconds; None takes that of the toolbox."""
    concurrency: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(None), repr=False)
    sandboxed: SandboxedFunction | None = None
    """Where a sandbox finds it; None if it runs in this process."""
    args_parameter: str | None = None
    """Name of the parameter that gets `ToolArgs`, if any."""
    scope_parameter: str | None = None
    """Name of the parameter that gets the `RolloutScope`, if any."""

    @classmethod
    def of_schema(
        cls,
        schema: ToolSchema,
        function: Callable[[JsonObject, RolloutScope], Awaitable[str]],
        *,
        timeout_s: float | None = None,
        max_concurrency: int | None = None,
    ) -> Self:
        """A tool with a given schema, such as that of an MCP server.

        Args:
            schema: what the model is shown; arguments are validated against its parameters.
            function: takes the arguments as JSON, and the rollout's scope.
            timeout_s: time limit of one call in seconds; None takes that of the toolbox.
            max_concurrency: most simultaneous calls in this process; None sets no limit.
        """

        async def call(arguments: JsonObject, scope: RolloutScope) -> str:
            return await function(arguments, scope)

        return cls(
            name=schema["function"]["name"],
            schema=schema,
            function=call,
            read_arguments=reader_of_schema(schema["function"].get("parameters", {})),
            write_result=str,
            timeout_s=timeout_s,
            concurrency=ConcurrencyLimit(max_concurrency),
            scope_parameter="scope",
        )

    @property
    def is_async(self) -> bool:
        """True if the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def serve(self, payload: JsonObject) -> str:
        """Runs a call inside a sandbox.

        Args:
            payload: `arguments` as the model wrote them, and `tool_args`, the fields of `ToolArgs`.
        """
        kwargs = self.read_arguments(payload["arguments"])
        if self.args_parameter is not None:
            kwargs[self.args_parameter] = ToolArgs(**payload["tool_args"])
        value = self.function(**kwargs)
        return self.write_result(asyncio.run(value) if self.is_async else value)


def writer_of(result: TypeAdapter[Any]) -> Callable[[Any], str]:
    """Strings as they are, all else as the JSON of the type."""
    return lambda value: value if isinstance(value, str) else result.dump_json(value).decode()
