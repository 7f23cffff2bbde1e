"""Tool calls in other forms than they are asked for, read as calls of the offered tools they can only mean."""

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from stillhouse.chat.parse import CALL, parse_completion
from stillhouse.types import Message, ToolSchema

_PREFIX: Final = re.compile(r"^(?:functions?|tools?|default_api)[.:/]")
"""The namespace of OpenAI's and Kimi's prompts, and Gemini's."""
_SUFFIX: Final = re.compile(r"(?:<\|.*|:\d+)$", re.DOTALL)
"""A tag of Harmony that its server did not take off, and the number that Kimi gives each call."""


def with_calls(message: Message, tools: Sequence[ToolSchema]) -> Message:
    """The message with its calls in `tool_calls`, each under the name of the tool that is offered.

    Read are a `function_call` of OpenAI's first form, and `<tool_call>` blocks that a server left in the text where
    each is a call of an offered tool.
    """
    fields: dict[str, Any] = {**message}
    offered = [tool["function"]["name"] for tool in tools]
    first_form = fields.pop("function_call", None)
    if not fields.get("tool_calls"):
        # vLLM writes an empty list where there is no call, and OpenAI refuses to be sent one.
        fields.pop("tool_calls", None)
        if isinstance(first_form, dict) and first_form.get("name"):
            fields["tool_calls"] = [{"id": "call_0", "type": "function", "function": first_form}]
        elif offered and isinstance(text := fields.get("content"), str) and CALL in text:
            parsed = parse_completion(text, tools=tools)
            blocks = parsed.get("tool_calls")
            if blocks and all(block["function"]["name"] in offered for block in blocks):
                fields = {key: value for key, value in {**fields, **parsed}.items() if value is not None}
    calls = fields.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            function["name"] = _offered_name(name, offered)
    return fields  # type: ignore[return-value]


def _offered_name(written: str, offered: Collection[str]) -> str:
    """The one offered name that `written` is but for a decoration, white space, case or hyphens; else `written`."""
    bare = _PREFIX.sub("", _SUFFIX.sub("", written.strip())).strip()
    meant = [name for name in offered if name in (written, bare)]
    meant = meant or [name for name in offered if _folded(name) == _folded(bare)]
    return written if written in offered or len(meant) != 1 else meant[0]


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")
