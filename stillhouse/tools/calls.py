"""One tool call: reads what the model wrote, runs the tool within its limits, and always gives a result."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, Literal

from stillhouse.sandbox.client import JailFailed
from stillhouse.tools.arguments import ArgumentsRefused
from stillhouse.tools.context import RolloutScope, ToolArgs, explain
from stillhouse.tools.decorator import Tool
from stillhouse.tools.results import cut, utf8
from stillhouse.tools.running import TimeLimitReached, run_function
from stillhouse.tools.sandbox import Sandbox
from stillhouse.types import JsonObject

ToolErrorKind = Literal["unknown_tool", "malformed_arguments", "invalid_arguments", "exception", "timeout", "killed"]
"""`killed`: the process of a sandboxed tool crashed or reached a limit other than time."""

MALFORMED_TOOL_CALL: Final = "malformed_tool_call"
"""Name a parser gives to a call it could not read; the arguments are then the raw text."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    content: str
    """The text that the model reads."""
    error_kind: ToolErrorKind | None
    """None if the tool returned."""
    latency_s: float
    """Seconds the call ran, without waiting for a free slot."""
    is_cut: bool = False
    """True if the model reads the beginning of a longer text."""


class CallFailed(Exception):
    """A call without a result; the message is for the model."""

    def __init__(self, kind: ToolErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ToolErrorKind = kind


@dataclass(frozen=True, slots=True)
class BoundToolbox:
    """The tools of one rollout, which share what the rollout keeps between calls."""

    tools: Mapping[str, Tool]
    timeout_s: float
    """Time limit of one call in seconds, for tools that set none."""
    max_result_characters: int
    """Length at which a result is cut, for tools that set none."""
    environment: Mapping[str, str]
    sandbox: Sandbox
    scope: RolloutScope

    async def call(self, name: str, arguments_json: str) -> ToolResult:
        """Return the result of one call, whatever happens in it."""
        started = time.monotonic()
        timeout_s = self.timeout_s
        try:
            tool = self._find(name)
            timeout_s = tool.timeout_s or self.timeout_s
            raw_arguments = _read_object(arguments_json)
            arguments = tool.read_arguments(raw_arguments)
            async with tool.concurrency.slot():
                started = time.monotonic()
                content = utf8(await self._run(tool, raw_arguments, arguments, timeout_s))
            content, is_cut = cut(content, tool.max_characters or self.max_result_characters)
            return ToolResult(content, None, time.monotonic() - started, is_cut)
        except CallFailed as error:
            kind, message = error.kind, str(error)
        except ArgumentsRefused as error:
            kind, message = "invalid_arguments", str(error)
        except TimeLimitReached:
            kind, message = "timeout", f"{name} did not return within {timeout_s:g} s"
        except JailFailed as error:
            kind = "killed" if error.kind == "no_jail" or error.kind == "lost" else error.kind
            message = str(error) if kind == "exception" else f"{name} {error}"
        except Exception as error:
            kind, message = "exception", explain(error)
        message, is_cut = cut(utf8(message), self.max_result_characters)
        content = json.dumps({"error": message}, ensure_ascii=False)
        return ToolResult(content, kind, time.monotonic() - started, is_cut)

    def _find(self, name: str) -> Tool:
        if name == MALFORMED_TOOL_CALL:
            raise CallFailed(
                "malformed_arguments",
                'the tool call could not be read; write one JSON object: {"name": ..., "arguments": {...}}',
            )
        if name not in self.tools:
            listed = ", ".join(self.tools) or "none"
            raise CallFailed("unknown_tool", f"there is no tool {name!r}; available tools: {listed}")
        return self.tools[name]

    async def _run(self, tool: Tool, raw_arguments: JsonObject, arguments: JsonObject, timeout_s: float) -> str:
        context = self.scope.context
        tool_args = ToolArgs(
            context.rollout_key, context.prompt_id, context.sample_index, context.metadata, self.environment
        )
        if tool.sandboxed is not None:
            payload = {"arguments": raw_arguments, "tool_args": asdict(tool_args)}
            return await self.sandbox.call(tool.sandboxed, payload, timeout_s)
        kwargs: JsonObject = dict(arguments)
        if tool.args_parameter is not None:
            kwargs[tool.args_parameter] = tool_args
        if tool.scope_parameter is not None:
            kwargs[tool.scope_parameter] = self.scope
        content: str = await run_function(tool.function, kwargs, timeout_s, tool.write_result)
        return content


def _read_object(arguments_json: str) -> JsonObject:
    """Return the JSON object a model wrote as the arguments of a call; a JSON string that holds one counts, too."""
    try:
        arguments = json.loads(arguments_json)
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, TypeError, RecursionError) as error:
        raise CallFailed("malformed_arguments", f"the arguments are not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise CallFailed("malformed_arguments", f"the arguments must be a JSON object, not {type(arguments).__name__}")
    return arguments
