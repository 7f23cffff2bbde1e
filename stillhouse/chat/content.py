"""Text and tool calls of a message, whichever form an endpoint wrote them in."""

from typing import Any, NamedTuple

import orjson

from stillhouse.types import Message


def text_of(message: Message) -> str:
    """The text of a message's content, which endpoints also write as a list of parts; what is no text is left out."""
    content: Any = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


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
