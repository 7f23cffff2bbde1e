"""A tool: a function, the schema a model is shown, and what it takes to run a call."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import TypeAdapter

from stillhouse.tools.arguments import ReadArguments, reader_of_schema
from stillhouse.tools.context import RolloutScope, ToolArgs
from stillhouse.tools.limits import Places
from stillhouse.tools.sandbox import Source
from stillhouse.types import JsonObject, ToolSchema


@dataclass(frozen=True, eq=False, kw_only=True)
class Tool:
    """A function with its schema. Calling it calls the function, unvalidated, as Python code expects."""

    name: str
    schema: ToolSchema = field(repr=False)
    function: Callable[..., Any] = field(repr=False)
    read_arguments: ReadArguments = field(repr=False)
    """Validates and coerces what the model wrote."""
    write_result: Callable[[Any], str] = field(repr=False)
    """Turns what the function returns into what the model reads."""
    timeout_s: float | None = None
    """Longest run of one call in seconds; None leaves it to the toolbox."""
    places: Places = field(default_factory=lambda: Places(None), repr=False)
    """How many calls run at once."""
    source: Source | None = None
    """Where a sandbox finds it; None where it runs in this process."""
    args_parameter: str | None = None
    """Name of the parameter that gets `ToolArgs`; None where there is none."""
    scope_parameter: str | None = None
    """Name of the parameter that gets the `RolloutScope`; None where there is none."""

    @classmethod
    def of_schema(
        cls,
        schema: ToolSchema,
        function: Callable[[JsonObject, RolloutScope], Awaitable[str]],
        *,
        timeout_s: float | None = None,
        max_concurrency: int | None = None,
    ) -> Self:
        """A tool whose schema is given by somebody else, such as an MCP server.

        Args:
            schema: what the model is shown; what it writes is validated against the parameters in it.
            function: gets the arguments as JSON, and what its rollout keeps between calls.
            timeout_s: longest run of one call in seconds; None leaves it to the toolbox.
            max_concurrency: most calls at once in this process; None sets no limit.
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
            places=Places(max_concurrency),
            scope_parameter="scope",
        )

    @property
    def is_async(self) -> bool:
        """True where the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def serve(self, payload: JsonObject) -> str:
        """Runs a call inside a sandbox.

        Args:
            payload: `arguments` as the model wrote them, and `told`, the fields of `ToolArgs`.
        """
        given = self.read_arguments(payload["arguments"])
        if self.args_parameter is not None:
            given[self.args_parameter] = ToolArgs(**payload["told"])
        value = self.function(**given)
        return self.write_result(asyncio.run(value) if self.is_async else value)


def writer_of(result: TypeAdapter[Any]) -> Callable[[Any], str]:
    """Strings as they are, all else as the JSON of the type."""
    return lambda value: value if isinstance(value, str) else result.dump_json(value).decode()
