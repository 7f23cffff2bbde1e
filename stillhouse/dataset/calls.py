"""Tool calls as text, however an endpoint wrote them."""

from typing import Any, NamedTuple

import orjson

from stillhouse.types import Message


class Call(NamedTuple):
    """A tool call. A part that the endpoint left out is empty text, and so is one that should be text and is not."""

    id: str
    name: str
    arguments: str
    """As the model wrote them; as compact JSON where the endpoint did not write them as text."""


def calls_of(message: Message) -> list[Call]:
    """The tool calls of a message, in order."""
    return [_call(call) for call in message.get("tool_calls") or ()]


def _call(call: Any) -> Call:
    written = call if isinstance(call, dict) else {}
    function = written.get("function")
    if not isinstance(function, dict):
        function = {}
    return Call(_text(written.get("id")), _text(function.get("name")), _arguments(function.get("arguments")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
