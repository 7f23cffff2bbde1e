"""The tools of a run and how a model's call becomes a result.

Nothing a model writes and nothing a tool does raises here: every failure is a message to the model and a kind to count.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import ValidationError

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.calculator import calculator
from stillhouse.tools.decorator import Tool
from stillhouse.tools.threads import TimeLimitReached, run_in_thread, run_in_thread_sync, within
from stillhouse.tools.user_file import load_tools
from stillhouse.types import JsonObject, ToolSchema

ToolErrorKind = Literal["unknown_tool", "malformed_arguments", "invalid_arguments", "exception", "timeout"]

MALFORMED_TOOL_CALL: Final = "malformed_tool_call"
"""Name under which a parser passes on a call it could not read; the arguments are then the raw text."""

_BUILTIN: Final = {"calculator": calculator}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told about one call."""

    content: str
    error_kind: ToolErrorKind | None
    """None where the tool returned."""
    latency_s: float


class _CallFailed(Exception):
    def __init__(self, kind: ToolErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ToolErrorKind = kind


class Toolbox:
    """Tools by name.

    Args:
        tools: the tools, in the order the model is shown them.
        timeout_s: longest run of one call in seconds, for tools that set none of their own.
        clock: seconds that never go back.

    Raises:
        ConfigError: two different tools share a name.
    """

    def __init__(
        self, tools: Iterable[Tool], *, timeout_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for one in tools:
            if self._tools.setdefault(one.name, one) is not one:
                raise ConfigError(f"tools: two tools are called {one.name!r}; rename one of the functions")
        self._timeout_s = timeout_s
        self._clock = clock

    @classmethod
    def from_config(cls, config: ToolsConfig) -> Self:
        """The built-in tools and those of the user's file.

        Raises:
            ConfigError: the file does not load, or two tools share a name.
        """
        tools = [_BUILTIN[name] for name in config.builtin]
        if config.file is not None:
            tools += load_tools(Path(config.file))
        return cls(tools, timeout_s=config.timeout_s)

    @property
    def names(self) -> list[str]:
        """Names of the tools, in order."""
        return list(self._tools)

    def select(self, names: Sequence[str] | None) -> "Toolbox":
        """A toolbox of these tools only; None selects all. Calls to any other are then calls to an unknown tool.

        Raises:
            ConfigError: a name is not in the toolbox.
        """
        if names is None:
            return self
        missing = [name for name in names if name not in self._tools]
        if missing:
            raise ConfigError(
                f"tool {missing[0]!r} is not configured; configured are: {self._listed()}. "
                "Add it to tools.builtin or define it in tools.file"
            )
        return Toolbox([self._tools[name] for name in names], timeout_s=self._timeout_s, clock=self._clock)

    def schemas(self, names: Sequence[str] | None = None) -> list[ToolSchema]:
        """Schemas of these tools; None gives all.

        Raises:
            ConfigError: a name is not in the toolbox.
        """
        return [one.schema for one in self.select(names)._tools.values()]

    async def call(self, name: str, arguments_json: str) -> ToolResult:
        """The result of one call; sync tools run in a thread, async ones in this event loop."""
        started = self._clock()
        try:
            one, arguments = self._prepare(name, arguments_json)
            timeout_s = one.timeout_s or self._timeout_s
            if one.is_async:
                value = await within(asyncio.ensure_future(one.function(**arguments)), timeout_s)
            else:
                value = await run_in_thread(lambda: one.function(**arguments), timeout_s)
            content = _render(one, value)
        except _CallFailed as failure:
            return self._failed(failure.kind, str(failure), started)
        except TimeLimitReached:
            return self._timed_out(name, started)
        except (Exception, SystemExit) as error:
            return self._raised(error, started)
        return ToolResult(content, None, self._clock() - started)

    def call_sync(self, name: str, arguments_json: str) -> ToolResult:
        """As `call`, for callers without an event loop; async tools get a loop of their own."""
        started = self._clock()
        try:
            one, arguments = self._prepare(name, arguments_json)
            content = _render(one, run_in_thread_sync(_blocking(one, arguments), one.timeout_s or self._timeout_s))
        except _CallFailed as failure:
            return self._failed(failure.kind, str(failure), started)
        except TimeLimitReached:
            return self._timed_out(name, started)
        except (Exception, SystemExit) as error:
            return self._raised(error, started)
        return ToolResult(content, None, self._clock() - started)

    def _prepare(self, name: str, arguments_json: str) -> tuple[Tool, JsonObject]:
        if name == MALFORMED_TOOL_CALL:
            raise _CallFailed(
                "malformed_arguments",
                'the tool call could not be read; write one JSON object: {"name": ..., "arguments": {...}}',
            )
        one = self._tools.get(name)
        if one is None:
            raise _CallFailed("unknown_tool", f"there is no tool {name!r}; available tools: {self._listed()}")
        try:
            written = json.loads(arguments_json)
        except (ValueError, TypeError, RecursionError) as error:
            raise _CallFailed("malformed_arguments", f"the arguments are not valid JSON: {error}") from error
        if not isinstance(written, dict):
            kind = type(written).__name__
            raise _CallFailed("malformed_arguments", f"the arguments must be a JSON object, not {kind}")
        try:
            arguments = one.arguments.model_validate(written)
        except ValidationError as error:
            reasons = "; ".join(
                f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in error.errors()
            )
            raise _CallFailed("invalid_arguments", reasons) from error
        # Not model_dump: a nested model reaches the function as the model it asked for.
        return one, {field: getattr(arguments, field) for field in one.arguments.model_fields}

    def _listed(self) -> str:
        return ", ".join(self._tools) or "none"

    def _timed_out(self, name: str, started: float) -> ToolResult:
        limit = self._tools[name].timeout_s or self._timeout_s
        return self._failed("timeout", f"{name} did not return within {limit:g} s", started)

    def _raised(self, error: BaseException, started: float) -> ToolResult:
        return self._failed("exception", f"{type(error).__name__}: {error}", started)

    def _failed(self, kind: ToolErrorKind, message: str, started: float) -> ToolResult:
        content = json.dumps({"error": _utf8(message)}, ensure_ascii=False)
        return ToolResult(content, kind, self._clock() - started)


def _blocking(one: Tool, arguments: JsonObject) -> Callable[[], Any]:
    if one.is_async:
        return lambda: asyncio.run(one.function(**arguments))
    return lambda: one.function(**arguments)


def _render(one: Tool, value: Any) -> str:
    return _utf8(value if isinstance(value, str) else one.result.dump_json(value).decode())


def _utf8(text: str) -> str:
    """`text` without lone surrogates, which no JSON writer and no tokenizer takes."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
