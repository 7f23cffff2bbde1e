"""Parses a completion in the Qwen3 / Hermes form into an assistant message.

    <think>reasoning</think>content<tool_call>{"name": ..., "arguments": {...}}</tool_call>

Nothing the model wrote is lost: arguments keep their spelling, and a malformed block becomes a call of `MALFORMED_CALL`
whose arguments are the block itself, so that the agent loop can answer it with an error.
"""

import json
import re
from typing import Any, Final

from stillhouse.types import Message, ToolCall

MALFORMED_CALL: Final = "malformed_tool_call"
"""Name of the call that stands for a `<tool_call>` block that cannot be read."""

_BLOCK: Final = re.compile(r"\n?<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_ARGUMENTS: Final = re.compile(r'"arguments"\s*:\s*')
THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"


def parse_completion(text: str, first_call_index: int = 0, *, with_calls: bool = True) -> Message:
    """The assistant message that a completion without its end-of-turn token spells.

    Ids of calls are `call_<n>` from `first_call_index` on, the number of calls earlier in the conversation. Without
    `with_calls` blocks are left in the content, for a conversation in which no tools were offered.

    Returns:
        A message whose `content` is None if the model wrote calls or reasoning alone, with `reasoning_content` and
        `tool_calls` only where there are some.
    """
    reasoning, rest = _split_reasoning(text)
    blocks = list(_BLOCK.finditer(rest)) if with_calls else []
    content = _BLOCK.sub("", rest) if blocks else rest
    is_empty = not content.strip() and bool(blocks or reasoning)
    message: Message = {"role": "assistant", "content": None if is_empty else content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if blocks:
        message["tool_calls"] = [
            parse_call(block[0].removeprefix("\n"), f"call_{number}")
            for number, block in enumerate(blocks, start=first_call_index)
        ]
    return message


def parse_call(block: str, call_id: str) -> ToolCall:
    """The call that a `<tool_call>` block spells, of which the end may be missing."""
    body = block.removeprefix(CALL)
    parsed = _name_and_arguments(body.removesuffix(END_CALL)) if body.endswith(END_CALL) else None
    name, arguments = parsed or (MALFORMED_CALL, block)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _split_reasoning(text: str) -> tuple[str, str]:
    """Reasoning and the rest. If the generation prompt opens `<think>`, the text holds only its end tag."""
    if END_THINK in text:
        thought, rest = text.split(END_THINK, 1)
        return thought.removeprefix(THINK).strip("\n"), rest.lstrip("\n")
    if text.startswith(THINK):
        return text.removeprefix(THINK).strip("\n"), ""
    return "", text


def _name_and_arguments(body: str) -> tuple[str, str] | None:
    """Name and arguments of a call, the arguments as written; None when `body` is no call."""
    try:
        value = json.loads(body)
    except json.JSONDecodeError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments")
    if isinstance(arguments, str):
        return value["name"], arguments
    if not isinstance(arguments, dict):
        return None
    return value["name"], _spelling(body, arguments)


def _spelling(body: str, arguments: dict[str, Any]) -> str:
    """The text of `arguments` in `body`; dumped anew where it cannot be located."""
    for match in _ARGUMENTS.finditer(body):
        try:
            value, end = json.JSONDecoder().raw_decode(body, match.end())
        except json.JSONDecodeError:
            continue
        if value == arguments:
            return body[match.end() : end]
    return json.dumps(arguments, ensure_ascii=False)
