"""Converts rows of a dataset to lines of other trainers' chat files.

Arguments are the model's own text. None of the forms has a field for reasoning that all its readers know, so reasoning
is left out; the Parquet forms keep it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from stillhouse.chat.content import calls_of, reasoning_of, text_of
from stillhouse.dataset.read import original_messages
from stillhouse.interop.text_rows import NEXT_RESULT
from stillhouse.types import JsonObject, Message

_KEYS: Final = {
    "system": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": ("role", "content", "name", "refusal", "tool_calls"),
    "tool": ("role", "content", "tool_call_id"),
}
_FUNCTION_KEYS: Final = ("name", "description", "parameters", "strict")


def openai_line(row: JsonObject) -> JsonObject:
    """Return `{"messages", "tools"}` as OpenAI's fine-tuning accepts it, without unknown keys.

    Source: OpenAI's guide to supervised fine-tuning, "Formatting your data", with tool calls.
    """
    line: JsonObject = {"messages": list(map(_openai_message, original_messages(row)))}
    if row["tools"]:
        functions = [_kept(tool["function"], _FUNCTION_KEYS) for tool in row["tools"]]
        line["tools"] = [{"type": "function", "function": function} for function in functions]
    return line


def jsonl_line(row: JsonObject) -> JsonObject:
    """Return `{"messages", "tools", "metadata"}`: OpenAI's form with the metadata of rnow's."""
    return {**openai_line(row), "metadata": _metadata(row)}


def rnow_line(row: JsonObject) -> JsonObject:
    """Return `{"messages", "metadata", "tools"}` of rnow's `train.jsonl`, the tools by name.

    Its row model (rnow/models.py) wants text in every message, an empty one beside calls.
    """
    openai = map(_openai_message, original_messages(row))
    messages = [{**message, "content": message.get("content") or ""} for message in openai]
    line: JsonObject = {"messages": messages, "metadata": _metadata(row)}
    if row["tools"]:
        line["tools"] = [tool["function"]["name"] for tool in row["tools"]]
    return line


def sharegpt_line(row: JsonObject) -> JsonObject:
    """Return `{"conversations", "system", "tools"}` as LLaMA-Factory and ms-swift read it.

    LLaMA-Factory drops rows whose speakers do not alternate. So, as in its own reader of OpenAI's form, results of
    one turn's calls become one observation, and content next to calls is left out.
    """
    messages: list[Any] = row["messages"]
    system = [text_of(message) for message in messages if message["role"] == "system"]
    line: JsonObject = {"conversations": list(_turns([one for one in messages if one["role"] != "system"]))}
    if system:
        line["system"] = "\n\n".join(system)
    if row["tools"]:
        line["tools"] = json.dumps([tool["function"] for tool in row["tools"]], ensure_ascii=False)
    return line


def losses(row: JsonObject, form: str) -> Counter[str]:
    """Return the number of messages by what a form has no place for in them."""
    lost: Counter[str] = Counter()
    for message in row["messages"]:
        lost["reasoning"] += bool(reasoning_of(message))
        if form == "sharegpt":
            lost["text beside calls"] += bool(message.get("tool_calls") and text_of(message).strip())
            lost["names of speakers"] += bool(message.get("name") and message["role"] != "tool")
    return +lost


def _metadata(row: JsonObject) -> JsonObject:
    facts = {name: row[name] for name in ("expected_answer", "tag", "verified") if row[name] is not None}
    # The teacher's facts come last, so that they win over keys of the prompt.
    return {**row["metadata"], **facts, "teacher": row["teacher"], "turns": row["turns"]}


def _turns(messages: Sequence[Message]) -> Iterator[JsonObject]:
    for is_result, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            yield {"from": "observation", "value": NEXT_RESULT.join(map(text_of, run))}
        else:
            yield from map(_turn, run)


def _turn(message: Message) -> JsonObject:
    calls = [_sharegpt_call(call) for call in message.get("tool_calls") or ()]
    if calls:
        return {"from": "function_call", "value": json.dumps(calls if calls[1:] else calls[0], ensure_ascii=False)}
    return {"from": "gpt" if message["role"] == "assistant" else "human", "value": text_of(message)}


def _sharegpt_call(call: Any) -> JsonObject:
    function = call.get("function") if isinstance(call, dict) else None
    kept = _kept(function, ("name", "arguments")) if isinstance(function, dict) else {}
    return {"name": "", "arguments": {}, **kept}


def _openai_message(message: Any) -> JsonObject:
    kept = _kept(message, _KEYS[message["role"]])
    kept = {key: value for key, value in kept.items() if value is not None or key == "content"}
    if isinstance(kept.get("content"), list) and all(part.get("type") == "text" for part in kept["content"]):
        # Content that is a list in one message and text in another is read by few programs.
        kept["content"] = text_of(message)
    if kept.get("tool_calls"):
        kept["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
            for call in calls_of(message)
        ]
    return kept


def _kept(value: JsonObject, keys: Sequence[str]) -> JsonObject:
    return {key: value[key] for key in keys if key in value}
