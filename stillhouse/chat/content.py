"""Text and tool calls of a message, whichever form an endpoint wrote them in."""

from typing import Any, NamedTuple

import orjson

from stillhouse.store import exact_json
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
    calls: list[Call] = []
    for written in message.get("tool_calls") or ():
        call: Any = written if isinstance(written, dict) else {}
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name = (value if isinstance(value, str) else "" for value in (call.get("id"), function.get("name")))
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else exact_json.dumps(arguments).decode()
        calls.append(Call(call_id, name, arguments))
    return calls


def tool_error_of(message: Message) -> str | None:
    """The error that a tool's message holds, as rnow and this project write it: an object with the single key `error`.

    None for any other message.
    """
    content = message.get("content")
    if message["role"] != "tool" or not isinstance(content, str) or not content.startswith("{"):
        return None
    try:
        value = exact_json.loads(content)
    except orjson.JSONDecodeError:
        return None
    return str(value["error"]) if isinstance(value, dict) and list(value) == ["error"] else None
