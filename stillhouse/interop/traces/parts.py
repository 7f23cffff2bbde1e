"""Messages of typed parts in OpenAI's form: Anthropic's blocks, OpenTelemetry's parts, OpenAI's items."""

from typing import Any, Final

from stillhouse.chat.content import reasoning_of
from stillhouse.interop.source_record import Unmapped
from stillhouse.store import exact_json
from stillhouse.types import JsonObject

_CALLS: Final = ("tool_use", "tool_call", "function_call", "custom_tool_call", "local_shell_call")
_RESULTS: Final = ("tool_result", "tool_call_response", "function_call_output", "custom_tool_call_output")
_KEPT: Final = ("role", "tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning")
_NOT_TEXT: Final = "a part that is no text: left out, since students read text alone"


def read_message(message: JsonObject, place: str, unmapped: list[Unmapped]) -> list[JsonObject]:
    """Return the messages in one: results of tools first, each a message of its own; none where it says nothing.

    Parts that are no text are left out and added to `unmapped`; a user's message of nothing else names their kinds.
    """
    parts = message.get("parts", message.get("content"))
    written = {key: message[key] for key in _KEPT if message.get(key)}
    if not isinstance(parts, list):
        return [{**written, "content": parts}]
    texts, thoughts, calls, results, others = [], [], [], [], []
    for part in parts:
        kind = "text" if isinstance(part, str) else part.get("type")
        if kind in ("text", "input_text", "output_text"):
            texts.append(text_in(part))
        elif kind in ("thinking", "reasoning"):
            thoughts.append(text_in(part))
        elif kind in _CALLS:
            arguments = next((part[key] for key in ("input", "arguments", "action") if key in part), None)
            # Free text is an argument of its own.
            arguments = {"input": arguments} if kind == "custom_tool_call" else arguments
            called = {"name": part.get("name", "local_shell"), "arguments": arguments}
            calls.append({"id": part.get("call_id") or part.get("id"), "type": "function", "function": called})
        elif kind in _RESULTS:
            results.append(_result(part, place, unmapped))
        else:
            others.append(f"[{kind}]")
            unmapped.append(Unmapped(_NOT_TEXT, str(kind), place))
    if message["role"] == "user" and not texts and not results:
        texts = others
    said = {
        "content": "\n\n".join(texts),
        "reasoning_content": "\n\n".join(filter(None, thoughts)),
        "tool_calls": calls,
    }
    written |= {"content": ""} | {key: value for key, value in said.items() if value}
    return [*results, *([] if written.keys() <= {"role", "content", "tool_call_id"} and not texts else [written])]


def _result(part: JsonObject, place: str, unmapped: list[Unmapped]) -> JsonObject:
    said = next((part[key] for key in ("content", "response", "result", "output") if part.get(key) is not None), "")
    if isinstance(said, list) and all(isinstance(one, dict) and "type" in one for one in said):
        said = "".join(one["content"] for one in read_message({"role": "tool", "content": said}, place, unmapped))
    text = said if isinstance(said, str) else exact_json.dumps(said).decode()
    # The form of a failed call here.
    text = exact_json.dumps({"error": text}).decode() if part.get("is_error") else text
    call_id = next((part[key] for key in ("tool_use_id", "call_id", "id") if key in part), None)
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def text_in(part: Any) -> str:
    """Return what a part says, under whichever key and however deep."""
    return reasoning_of({"role": "assistant", "reasoning": part})  # type: ignore[typeddict-unknown-key]
