"""Converts messages of other programs to the OpenAI form."""

from collections.abc import Iterable
from typing import Any, Final

from stillhouse.chat.assistant_message import assistant_message
from stillhouse.chat.content import reasoning_of
from stillhouse.chat.parse import MALFORMED_CALL, parse_completion
from stillhouse.prompts.row import RowProblem, decoded, objects_in, role_of
from stillhouse.types import JsonObject, Message

_CALL: Final = "<tool_call>"
CALLS: Final = ("function_call", "tool_call")
"""Roles of messages whose text is a call or a list of calls (LLaMA-Factory, ms-swift)."""


def read_messages(value: Any, key: str = "messages", *, reads_text: bool = True) -> list[Message]:
    """Return the messages of a foreign row: a list under `key`, or one as JSON text, as each message may be.

    Calls and reasoning in the text become fields of the message unless `reads_text` is off, arguments become JSON text,
    a deprecated `function_call` becomes a tool call, tool results without an id get the id of the call they follow,
    empty text beside calls and null keys are dropped. Raises RowProblem if it is no such list; `parse_row` checks the
    form of each message.
    """
    value = objects_in(value, key)
    messages: list[JsonObject] = []
    waiting: list[str] = []
    num_calls = 0
    for index, item in enumerate(value):
        message = {name: part for name, part in item.items() if part is not None or name == "content"}
        if message.get("role") in CALLS:
            calls = _spoken_calls(message.get("content"), f"{key}[{index}]", num_calls)
            message |= {"role": "assistant", "content": None, "tool_calls": calls}
        # An unknown one is refused with the row.
        message["role"] = role_of(message.get("role")) or message.get("role")
        if message["role"] == "assistant":
            follows_tool = index + 1 < len(value) and role_of(value[index + 1].get("role")) == "tool"
            message = _assistant(message, num_calls, is_answered=follows_tool, reads_text=reads_text)
            waiting = [_get(call, "id") for call in message.get("tool_calls", ())]
            num_calls += len(waiting)
        elif message["role"] == "tool":
            _give_id(message, waiting)
        messages.append(message)
    return messages  # type: ignore[return-value]


def _spoken_calls(text: Any, where: str, first: int) -> list[JsonObject]:
    calls = decoded(text, where)
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(_get(call, "name"), str) for call in calls):
        raise RowProblem(f"expected {where} to be a function_call with name and arguments, saw {text!r:.60}")
    return [
        {"id": f"call_{number}", "function": {"name": call["name"], "arguments": call.get("arguments") or {}}}
        for number, call in enumerate(calls, start=first)
    ]


def nested_calls(message: JsonObject) -> list[JsonObject] | None:
    """Return the calls of a message of inspect_ai or verifiers, which write them flat, in OpenAI's form."""
    return [
        {
            "id": call.get("id"),
            "type": "function",
            "function": {"name": call.get("name") or call.get("function"), "arguments": call.get("arguments")},
        }
        for call in message.get("tool_calls") or ()
    ] or None


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _assistant(written: JsonObject, num_calls: int, *, is_answered: bool, reads_text: bool) -> JsonObject:
    message: JsonObject = {**assistant_message(written)}
    # Nothing of it goes back to an endpoint.
    message.pop("sent_back", None)
    if not reads_text and isinstance(written.get("content"), str):
        message["content"] = written["content"]
        if not reasoning_of(written):  # type: ignore[arg-type]
            message.pop("reasoning_content", None)
    for number, call in enumerate(message.get("tool_calls", ()), start=num_calls):
        if _get(call, "id") == "":
            call["id"] = f"call_{number}"
    content = message["content"]
    if "tool_calls" in message and not content and written.get("content", "") == "":
        # rnow and others write it for want of null.
        del message["content"]
    elif reads_text and isinstance(content, str) and "tool_calls" not in message and _CALL in content:
        parsed = parse_completion(content, num_calls)
        names = [call["function"]["name"] for call in parsed.get("tool_calls", ())]
        # Text about the markup is no call, but a malformed call that was answered is one.
        if MALFORMED_CALL not in names or is_answered:
            return {**message, **parsed}
    return message


def _give_id(message: JsonObject, waiting: list[str]) -> None:
    written = message.get("tool_call_id")
    if written in waiting:
        waiting.remove(written)
    elif written is None and waiting:
        message["tool_call_id"] = waiting.pop(0)


def called_tools(messages: Iterable[Message]) -> list[str]:
    """Return the names of the tools called, in order of their first call."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return list(dict.fromkeys(call["function"]["name"] for call in calls if call["function"]["name"] != MALFORMED_CALL))


def first_answer(messages: list[Message], num_turns: int | None = None) -> int:
    """Return the index of the first of the assistant's last `num_turns` messages, or of all; without any, the end."""
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        return len(messages)
    return answers[-num_turns] if num_turns and num_turns <= len(answers) else answers[0]
