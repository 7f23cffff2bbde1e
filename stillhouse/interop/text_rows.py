"""Rows of other trainers' data files: ShareGPT, Alpaca, TRL's prompt and completion, traces of verifiers."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from stillhouse.chat.content import arguments_text
from stillhouse.interop.chat_rows import read_conversation
from stillhouse.interop.source_record import SourceRecord, Unmapped, pop_unmapped
from stillhouse.prompts.row import RowProblem
from stillhouse.types import JsonObject

_SPEAKERS: Final = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
NEXT_RESULT: Final = "\n</tool_response>\n<tool_response>\n"
"""Between the results of one turn's calls, as LLaMA-Factory joins them in one observation."""
_PREFERENCES: Final = dict.fromkeys(
    ("chosen", "rejected", "rejected_completion"), "preferences are not learnt here; the row's own answer is kept"
)


def is_sharegpt_row(row: JsonObject) -> bool:
    """Whether a row has ShareGPT's turns of `from` and `value`."""
    turns = row.get("conversations")
    return isinstance(turns, list) and bool(turns) and isinstance(turns[0], dict) and "from" in turns[0]


def is_alpaca_row(row: JsonObject) -> bool:
    """Whether a row has Alpaca's `instruction` and `output`."""
    return isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str)


def is_completion_row(row: JsonObject) -> bool:
    """Whether a row has `prompt` and `completion`, each a text or messages."""
    return "prompt" in row and isinstance(row.get("completion"), str | list)


def read_sharegpt_row(row: JsonObject) -> SourceRecord:
    """Reads a row of ShareGPT, also with calls and observations as LLaMA-Factory writes them; see `ReadRow`."""
    row = dict(row)
    unmapped = pop_unmapped(row, _PREFERENCES)
    system = row.pop("system", None)
    messages = [{"role": "system", "content": system}] if system else []
    row["messages"] = [*messages, *_turns(row.pop("conversations"))]
    return read_conversation(row, unmapped)


def read_alpaca_row(row: JsonObject) -> SourceRecord:
    """Reads a row of Alpaca's form, with `system` and the earlier turns in `history`; see `ReadRow`."""
    row = dict(row)
    unmapped = pop_unmapped(row, _PREFERENCES)
    system, history = row.pop("system", None), row.pop("history", None) or []
    question = "\n".join(part for part in (row.pop("instruction"), row.pop("input", None)) if part)
    messages = [{"role": "system", "content": system}] if system else []
    if not all(isinstance(turn, list | tuple) and len(turn) == 2 for turn in history):
        raise RowProblem(f"expected history to be pairs of instruction and output, saw {history!r:.60}")
    for instruction, output in history:
        messages += [{"role": "user", "content": instruction}, {"role": "assistant", "content": output}]
    answer = {"role": "assistant", "content": row.pop("output")}
    # Earlier answers are context: they are not the answer to this row's question.
    row["messages"] = [{**message, "weight": 0} for message in messages] + [
        {"role": "user", "content": question},
        answer,
    ]
    return read_conversation(row, unmapped)


def read_completion_row(row: JsonObject) -> SourceRecord:
    """Reads TRL's prompt-completion rows and saved rollouts of verifiers; see `ReadRow`.

    Verifiers' `info` may be an object as JSON text, `task` is the environment's name, `reward` the trajectory's.
    """
    row = dict(row)
    prompt, completion = row.pop("prompt"), row.pop("completion")
    messages = _messages(prompt, "user", "prompt")
    answers = _messages(completion, "assistant", "completion")
    row["messages"] = messages + answers
    unmapped: list[Unmapped] = []
    record = read_conversation(row, unmapped)
    for conversation in record.conversations:
        conversation.num_prompt = len(messages)
    return record


def _messages(value: Any, role: str, key: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise RowProblem(f"expected {key} to be a text or a list of messages, saw {value!r:.60}")
    return value


def _turns(turns: Sequence[Any]) -> Iterator[JsonObject]:
    num_waiting = num_calls = 0
    for index, turn in enumerate(turns):
        speaker = turn.get("from") if isinstance(turn, dict) else None
        role, value = _SPEAKERS.get(str(speaker)), turn.get("value") if isinstance(turn, dict) else None
        if role is None or not isinstance(value, str):
            raise RowProblem(
                f"expected conversations[{index}] to have `from`, one of {', '.join(_SPEAKERS)}, and `value`, a text; "
                f"saw {turn!r:.60}"
            )
        if speaker == "function_call":
            calls = _calls(value, index, num_calls)
            num_waiting, num_calls = len(calls), num_calls + len(calls)
            yield {"role": role, "content": None, "tool_calls": calls}
        elif role == "tool":
            results = value.split(NEXT_RESULT) if num_waiting > 1 else [value]
            yield from ({"role": role, "content": result} for result in results)
        else:
            yield {"role": role, "content": value}


def _calls(value: str, index: int, first: int) -> list[JsonObject]:
    try:
        calls = orjson.loads(value)
        calls = calls if isinstance(calls, list) else [calls]
        return [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": call["name"], "arguments": arguments_text(call.get("arguments"))},
            }
            for number, call in enumerate(calls, start=first)
        ]
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise RowProblem(
            f"expected conversations[{index}], a function_call, to be JSON with name and arguments: {error}; saw "
            f"{value[:60]!r}"
        ) from error
