"""An assistant's message in this project's one form, whatever form its endpoint, or another program, wrote it in.

role               `assistant`
content            the text without thinking; null beside calls that no text accompanies
reasoning_content  the reasoning, from wherever it was written; absent without any
tool_calls         calls with name, and arguments as JSON text; absent without any
sent_back          what the endpoint gets back in place of these keys; null takes a key away
...                every other key that is not null, as it came (signed and encrypted reasoning above all)
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from stillhouse.chat.content import arguments_text, calls_of, parts_of, reasoning_of, text_of
from stillhouse.chat.thoughts import split_thoughts, without_end_tokens
from stillhouse.types import JsonObject, Message

_ID: Final = "call{:05d}"
"""Mistral takes ids of exactly nine letters and digits and no others, everybody else any."""


def assistant_message(written: Mapping[str, Any]) -> Message:
    """The message in the form above; one that has it already is returned as it is.

    A call without a function's name stays as it came, and so does content that is neither text nor parts with text.
    """
    message: JsonObject = {key: value for key, value in written.items() if value is not None} | {"role": "assistant"}
    calls, deprecated = message.pop("tool_calls", None), message.pop("function_call", None)
    calls = calls or ([{"id": "", "function": deprecated}] if deprecated else None)
    if calls:
        message["tool_calls"] = [_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    sent_back: JsonObject = message.pop("sent_back", {})
    said, reasoning = message.get("reasoning_content"), reasoning_of(cast(Message, message))
    content = message.get("content")
    if (text := _text(content)) is not None:
        thoughts = split_thoughts(text)
        # A server that parsed the reasoning knows better which tags are text, unless the text repeats it.
        answer = thoughts.answer if thoughts.reasoning.strip() in ("", reasoning.strip()) or not reasoning else text
        if isinstance(content, list) and len(list(parts_of(content, reasoning=True))):
            sent_back = {**sent_back, "content": content}
        elif answer != text and not thoughts.in_channels:
            sent_back = {**sent_back, "content": text}
        reasoning = reasoning or thoughts.reasoning
        message["content"] = answer if answer or not calls else None
    if reasoning and reasoning != said:
        message["reasoning_content"] = reasoning
        sent_back = {**sent_back, "reasoning_content": said}
    return cast(Message, {**message, "sent_back": sent_back} if sent_back else message)


def in_one_form(messages: Sequence[Message]) -> list[Message]:
    """A conversation with the assistant's messages in the form above."""
    return [assistant_message(message) if message["role"] == "assistant" else message for message in messages]


def with_own_ids(message: Message, earlier: Sequence[Message]) -> Message:
    """The message with an id of its own for each call: its endpoint's, where that is a text and no earlier call's.

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


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return call
    arguments = arguments_text(function.get("arguments"))
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _text(content: Any) -> str | None:
    """The text of a content, less the special tokens behind it; None where a part of it is no text."""
    if isinstance(content, list) and len(list(parts_of(content))) < len(content):
        return None
    is_known = content is None or isinstance(content, str | list) or any(parts_of(content))
    return without_end_tokens(text_of({"role": "assistant", "content": content})) if is_known else None
