"""Parses a completion into an assistant message, in the form of Qwen, Hermes and GLM.

    <think>reasoning</think>content<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>

A block of a call may hold tags in place of JSON (Qwen3-Coder, GLM). They hold strings as they are and other values as
JSON, so that only the schema of the tool tells them apart.

    <function=f><parameter=x>1</parameter></function>
    f<arg_key>x</arg_key><arg_value>1</arg_value>

Nothing the model wrote is lost: arguments in JSON keep their spelling, and a malformed block becomes a call of
`MALFORMED_CALL` whose arguments are the block itself, so that the agent loop can answer it with an error.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from stillhouse.types import JsonObject, Message, ToolCall, Tools

_ARGUMENTS: Final = re.compile(r'"arguments"\s*:\s*')
_TAGGED: Final = (
    (
        re.compile(r"\s*<function=(?P<name>[^>\s]+)>(?P<arguments>.*)</function>\s*", re.DOTALL),
        re.compile(r"\s*<parameter=(?P<key>[^>\s]+)>\n?(?P<value>.*?)\n?</parameter>\s*", re.DOTALL),
    ),
    (
        re.compile(r"\s*(?P<name>[\w.-]+)\s*(?P<arguments><arg_key>.*)", re.DOTALL),
        re.compile(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*", re.DOTALL),
    ),
)
"""The call and one of its arguments, as Qwen3-Coder writes them, and as GLM does."""
_CONSTANTS: Final = {"True": True, "False": False, "None": None}
"""Values that templates write as Python does."""


def _from_json(body: str) -> tuple[str, str] | None:
    """Return name and arguments of a call, these as JSON text, as they are written; None when `body` is none."""
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
    """Return the text of `arguments` in `body`; dumped anew where it cannot be located."""
    for match in _ARGUMENTS.finditer(body):
        try:
            value, end = json.JSONDecoder().raw_decode(body, match.end())
        except json.JSONDecodeError:
            continue
        if value == arguments:
            return body[match.end() : end]
    return json.dumps(arguments, ensure_ascii=False)


def _from_tags(body: str, tools: Tools) -> tuple[str, str] | None:
    """Return the same; values are strings where the schema in `tools` says so, else JSON if they can be read so."""
    for call, argument in _TAGGED:
        match = call.fullmatch(body)
        if match is not None and not argument.sub("", match["arguments"]).strip():
            values = dict(_typed(match["name"], argument.finditer(match["arguments"]), tools))
            return match["name"], json.dumps(values, ensure_ascii=False)
    return None


def _typed(name: str, matches: Iterator[re.Match[str]], tools: Tools) -> Iterator[tuple[str, Any]]:
    functions: dict[str, JsonObject] = {tool["function"]["name"]: {**tool["function"]} for tool in tools or ()}
    properties = (functions.get(name, {}).get("parameters") or {}).get("properties") or {}
    for match in matches:
        key, text = match["key"], match["value"]
        # A schema may also be true or false.
        schema = properties.get(key)
        kinds = schema.get("type", ()) if isinstance(schema, dict) else ()
        is_text = kinds == "string" or ("string" in kinds and text not in ("null", "None"))
        yield key, text if is_text else _value(text)


def _value(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


MALFORMED_CALL: Final = "malformed_tool_call"
"""Name of the call that stands for a `<tool_call>` block that cannot be read."""

_BLOCK: Final = re.compile(r"\n?<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"


def parse_completion(text: str, first_call_index: int = 0, tools: Tools = None, *, with_calls: bool = True) -> Message:
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


def split_calls(text: str, first_call_index: int = 0, tools: Tools = None) -> tuple[str, list[ToolCall]]:
    """Return a text without its blocks of calls, and the calls; see `parse_completion`."""
    blocks = enumerate(_BLOCK.finditer(text), start=first_call_index)
    calls = [parse_call(block[0].removeprefix("\n"), f"call_{number}", tools) for number, block in blocks]
    return _BLOCK.sub("", text), calls


def parse_call(block: str, call_id: str, tools: Tools = None) -> ToolCall:
    """Return the call that a `<tool_call>` block spells, of which the end may be missing."""
    body, end = block.removeprefix(CALL).removesuffix(END_CALL), block.endswith(END_CALL)
    name, arguments = (end and (_from_json(body) or _from_tags(body, tools))) or (MALFORMED_CALL, block)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _split_reasoning(text: str) -> tuple[str, str]:
    """Return reasoning and the rest. If the generation prompt opens `<think>`, the text holds only its end tag."""
    if END_THINK in text:
        thought, rest = text.split(END_THINK, 1)
        return thought.removeprefix(THINK).strip("\n"), rest.lstrip("\n")
    if text.startswith(THINK):
        return text.removeprefix(THINK).strip("\n"), ""
    return "", text
