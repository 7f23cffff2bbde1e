"""Parses a completion into an assistant message, in the form of Qwen, Hermes and GLM.

    <think>reasoning</think>content<tool_call>{"name": ..., "arguments": {...}}</tool_call>

Blocks of calls may hold tags in place of JSON; see `stillhouse.chat.call_body`. Nothing the model wrote is lost:
arguments in JSON keep their spelling, and a malformed block becomes a call of `MALFORMED_CALL` whose arguments are the
block itself, so that the agent loop can answer it with an error.
"""

import re
from collections.abc import Sequence
from typing import Final

from stillhouse.chat.call_body import name_and_arguments
from stillhouse.types import Message, ToolCall, ToolSchema

MALFORMED_CALL: Final = "malformed_tool_call"
"""Name of the call that stands for a `<tool_call>` block that cannot be read."""

_BLOCK: Final = re.compile(r"\n?<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"


def parse_completion(
    text: str, first_call_index: int = 0, tools: Sequence[ToolSchema] | None = None, *, with_calls: bool = True
) -> Message:
    """Return the assistant message that a completion without its end-of-turn token spells.

    Ids of calls are `call_<n>` from `first_call_index` on, the number of calls earlier in the conversation. Without
    `with_calls` blocks are left in the content, for a conversation in which no tools were offered. Schemas of `tools`
    tell which arguments are strings where a call does not. `content` is None if the model wrote calls or reasoning
    alone; `reasoning_content` and `tool_calls` are there only where there are some.
    """
    reasoning, content = _split_reasoning(text)
    calls: list[ToolCall] = []
    if with_calls:
        content, calls = split_calls(content, first_call_index, tools)
    is_empty = not content.strip() and bool(calls or reasoning)
    message: Message = {"role": "assistant", "content": None if is_empty else content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def split_calls(
    text: str, first_call_index: int = 0, tools: Sequence[ToolSchema] | None = None
) -> tuple[str, list[ToolCall]]:
    """Return a text without its blocks of calls, and the calls; see `parse_completion`."""
    blocks = enumerate(_BLOCK.finditer(text), start=first_call_index)
    calls = [parse_call(block[0].removeprefix("\n"), f"call_{number}", tools) for number, block in blocks]
    return _BLOCK.sub("", text), calls


def parse_call(block: str, call_id: str, tools: Sequence[ToolSchema] | None = None) -> ToolCall:
    """Return the call that a `<tool_call>` block spells, of which the end may be missing."""
    body = block.removeprefix(CALL)
    parsed = name_and_arguments(body.removesuffix(END_CALL), tools) if body.endswith(END_CALL) else None
    name, arguments = parsed or (MALFORMED_CALL, block)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _split_reasoning(text: str) -> tuple[str, str]:
    """Return reasoning and the rest. If the generation prompt opens `<think>`, the text holds only its end tag."""
    if END_THINK in text:
        thought, rest = text.split(END_THINK, 1)
        return thought.removeprefix(THINK).strip("\n"), rest.lstrip("\n")
    if text.startswith(THINK):
        return text.removeprefix(THINK).strip("\n"), ""
    return "", text
