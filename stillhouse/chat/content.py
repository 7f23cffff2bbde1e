"""The content of a message: its text, reasoning and tool calls, whichever form an endpoint wrote them in.

Everything that reads a message does so through these functions. Answers are normalised as they are read from the
network (`stillhouse.chat.assistant_message`); older trajectories and messages of the user are as they were written.
"""

import json
from collections.abc import Set
from typing import Any, Final, NamedTuple

import orjson

from stillhouse.store import exact_json
from stillhouse.types import Message

REASONING_KEYS: Final = (
    *("reasoning_content", "reasoning", "reasoning_text", "thinking", "thinking_blocks", "reasoning_details"),
)
"""Where endpoints write reasoning apart from the text; the first that says something counts, since several may repeat
it: `reasoning_text` is GitHub Copilot's, `thinking` Ollama's, `thinking_blocks` LiteLLM's of Anthropic's blocks."""
REASONING_PARTS: Final = frozenset({"thinking", "reasoning", "redacted_thinking"})
_TEXT_PARTS: Final = frozenset({"text", "output_text"})
_SAYING: Final = ("text", "thinking", "reasoning", "summary", "content")
"""Keys of a part or block that hold what it says."""


def text_of(message: Message) -> str:
    """Return the text of a message's content, which endpoints also write as parts; what is no text is left out."""
    return _said(parts_of(message.get("content"), _TEXT_PARTS))


def reasoning_of(message: Message) -> str:
    """Return the reasoning that a message shows apart from its text; empty where it shows none.

    Encrypted reasoning is none, and neither is thinking in the text: see `stillhouse.chat.thoughts`.
    """
    apart = (_said(message.get(key)) for key in REASONING_KEYS)
    shown = next((said for said in apart if said.strip()), "")
    return shown or _said(parts_of(message.get("content"), REASONING_PARTS))


def parts_of(content: Any, kinds: Set[str] = REASONING_PARTS | _TEXT_PARTS) -> list[Any]:
    """Return the parts of these kinds in a content that is a text, a part, or a list of both."""
    parts = content if isinstance(content, list) else [content]
    return [part for part in parts if _kind(part) in kinds]


def _kind(part: Any) -> str:
    return str(part.get("type")) if isinstance(part, dict) else "text" if isinstance(part, str) else ""


def _said(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(_said, value))
    if isinstance(value, dict):
        return next((said for key in _SAYING if (said := _said(value.get(key)))), "")
    return value if isinstance(value, str) else ""


class Call(NamedTuple):
    """A tool call. A part that the endpoint left out is empty text, and so is one that should be text and is not."""

    id: str
    name: str
    arguments: str
    """JSON text; see `arguments_text`."""

    def result(self, content: str) -> Message:
        """Return the message that answers the call."""
        return {"role": "tool", "tool_call_id": self.id, "content": content}


def calls_of(message: Message) -> list[Call]:
    """Return the tool calls of a message, in order."""
    calls: list[Call] = []
    for written in message.get("tool_calls") or ():
        call: Any = written if isinstance(written, dict) else {}
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name = (value if isinstance(value, str) else "" for value in (call.get("id"), function.get("name")))
        calls.append(Call(call_id, name, arguments_text(function.get("arguments")) if function else ""))
    return calls


def arguments_text(written: Any) -> str:
    """Return the arguments of a call as JSON text: those that run the tool, are sent back, and are trained on.

    An object becomes compact JSON, nothing (null, blank, absent) becomes `{}`, and JSON text that holds the JSON text
    of an object becomes the latter. Everything else stays as the model wrote it, malformed or not.
    """
    if not isinstance(written, str):
        return "{}" if written is None else exact_json.dumps(written).decode()
    stripped = written.strip()
    if stripped in ("", "null"):
        return "{}"
    if stripped.startswith('"'):
        try:
            inner = json.loads(stripped)
            return inner if isinstance(json.loads(inner), dict) else written
        except (ValueError, RecursionError):
            return written
    return written


def tool_error_of(message: Message) -> str | None:
    """Return the error that a tool's message holds as an object with the single key `error`; None for any other."""
    content = message.get("content")
    if message["role"] != "tool" or not isinstance(content, str) or not content.startswith("{"):
        return None
    try:
        value = exact_json.loads(content)
    except orjson.JSONDecodeError:
        return None
    return str(value["error"]) if isinstance(value, dict) and list(value) == ["error"] else None
