"""A tool: a function, the schema a model is shown, and what it takes to run a call."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stillhouse.tools.arguments import ReadArguments
from stillhouse.tools.context import ToolArgs
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
        return self.write_result(asyncio.run(value) if inspect.iscoroutinefunction(self.function) else value)
