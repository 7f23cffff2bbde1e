"""An assistant's message in this project's one form, whatever form its endpoint, or another program, wrote it in.

role               `assistant`
content            the text without thinking; null beside calls that no text accompanies
reasoning_content  the reasoning, from wherever it was written; absent without any
tool_calls         calls with name, and arguments as JSON text; absent without any
sent_back          what the endpoint gets back in place of these keys; null takes a key away
...                every other key that is not null, as it came (signed and encrypted reasoning above all)
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from stillhouse.chat.content import REASONING_PARTS, arguments_text, calls_of, parts_of, reasoning_of, text_of
from stillhouse.chat.parse import split_calls
from stillhouse.chat.thoughts import split_thoughts, without_end_tokens
from stillhouse.types import JsonObject, Message, ToolSchema

_ID: Final = "call{:05d}"
"""Mistral takes ids of exactly nine letters and digits and no others, everybody else any."""
_DECORATION: Final = re.compile(r"^(?:functions?|tools?|default_api)[.:/]|(?:<\|.*|:\d+)$", re.DOTALL)
"""The namespace of OpenAI's and Kimi's prompts, and Gemini's; a tag of Harmony, and the number Kimi gives each call."""


def assistant_message(written: Mapping[str, Any], tools: Sequence[ToolSchema] = ()) -> Message:
    """Return the message in the form above; one that has it already is returned as it is.

    Calls of the offered `tools` are also read from `<tool_call>` blocks in the text, and named as they are offered. A
    call without a function's name stays as it came, and so does content that is neither text nor parts with text.
    """
    message: JsonObject = {key: value for key, value in written.items() if value is not None} | {"role": "assistant"}
    calls, deprecated = message.pop("tool_calls", None), message.pop("function_call", None)
    calls = calls or ([{"id": "", "function": deprecated}] if deprecated else [])
    offered = [tool["function"]["name"] for tool in tools]
    sent_back: JsonObject = message.pop("sent_back", {})
    said, reasoning = message.get("reasoning_content"), reasoning_of(cast(Message, message))
    content = message.get("content")
    if (text := _text(content)) is not None:
        thoughts = split_thoughts(text)
        # A server that parsed the reasoning knows better which tags are text, unless the text repeats it.
        answer = thoughts.answer if thoughts.reasoning.strip() in ("", reasoning.strip()) or not reasoning else text
        spoken, spelt = split_calls(answer, tools=tools) if tools and not calls else (answer, [])
        is_called = bool(spelt) and all(call["function"]["name"] in offered for call in spelt)
        if isinstance(content, list) and parts_of(content, REASONING_PARTS):
            sent_back = {**sent_back, "content": content}
        elif answer != text and not thoughts.in_channels and not is_called:
            sent_back = {**sent_back, "content": text}
        reasoning = reasoning or thoughts.reasoning
        if is_called:
            answer, calls, said = spoken, spelt, reasoning
        message["content"] = answer if answer or not calls else None
    if calls:
        message["tool_calls"] = [_call(call, offered) for call in (calls if isinstance(calls, list) else [calls])]
    if reasoning:
        message["reasoning_content"] = reasoning
        sent_back = sent_back if reasoning == said else {**sent_back, "reasoning_content": said}
    return cast(Message, {**message, "sent_back": sent_back} if sent_back else message)


def in_one_form(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation with the assistant's messages in the form above."""
    return [assistant_message(message) if message["role"] == "assistant" else message for message in messages]


def with_own_ids(message: Message, earlier: Sequence[Message]) -> Message:
    """Return the message with one id for each call: its endpoint's, where that is a text and no earlier call's.

    The new ones follow from the number of calls before them alone, so that a replay gives the same.
    """
    if not message.get("tool_calls"):
        return message
    taken = [call.id for one in earlier for call in calls_of(one)]
    calls: list[Any] = []
    for call, written in zip(calls_of(message), message["tool_calls"], strict=True):
        call_id, number = call.id, len(taken)
        while not call_id or call_id in taken:
            call_id, number = _ID.format(number), number + 1
        taken.append(call_id)
        calls.append({**written, "id": call_id} if isinstance(written, dict) else written)
    return {**message, "tool_calls": calls}


def _call(call: Any, offered: Collection[str]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return call
    name, arguments = _offered_name(function["name"], offered), arguments_text(function.get("arguments"))
    return {**call, "type": "function", "function": {**function, "name": name, "arguments": arguments}}


def _offered_name(written: str, offered: Collection[str]) -> str:
    """Return the one offered name that `written` is but for a decoration, white space, case or hyphens; else itself."""
    bare = _DECORATION.sub("", written.strip()).strip()
    meant = [name for name in offered if name == bare] or [name for name in offered if _folded(name) == _folded(bare)]
    return written if written in offered or len(meant) != 1 else meant[0]


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")


def _text(content: Any) -> str | None:
    """Return the text of a content, less the special tokens behind it; None where a part of it is no text."""
    parts = [] if content is None else content if isinstance(content, list) else [content]
    if parts_of(parts) != parts:
        return None
    return without_end_tokens(text_of({"role": "assistant", "content": content}))
