"""Rows of other trainers' data files: ShareGPT, Alpaca, TRL's prompt and completion, traces of verifiers."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from stillhouse.interop.chat_rows import read_conversation
from stillhouse.interop.loss_keys import LOSS_KEYS, pop_unread
from stillhouse.interop.messages import CALLS
from stillhouse.interop.source_record import SourceRecord
from stillhouse.prompts.row import RowProblem, brief, decoded, role_of
from stillhouse.types import JsonObject

NEXT_RESULT: Final = "\n</tool_response>\n<tool_response>\n"
"""Between the results of one turn's calls, as LLaMA-Factory joins them in one observation."""
_TURNS: Final = ("conversations", "conversation")


def is_sharegpt_row(row: JsonObject) -> bool:
    """Whether a row has ShareGPT's turns of `from` and `value`, or messages under that key; also as JSON text."""
    turns = row.get("conversations")
    return isinstance(turns, str) or has_turns(turns, ("from", "role")) or has_turns(row.get("conversation"))


def has_turns(value: Any, keys: Sequence[str] = ("from",)) -> bool:
    """Whether a value is a list of objects with one of `keys`, or of JSON text; the first tells."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, str) or (isinstance(first, dict) and any(key in first for key in keys))


def is_alpaca_row(row: JsonObject) -> bool:
    """Whether a row has Alpaca's `instruction` and `output`."""
    return "instruction" in row and "output" in row


def is_completion_row(row: JsonObject) -> bool:
    """Whether a row has `prompt` and `completion`."""
    return "prompt" in row and "completion" in row


def read_sharegpt_row(row: JsonObject, *, reads_text: bool = True) -> SourceRecord:
    """Read a row of ShareGPT, also with calls and observations as LLaMA-Factory writes them; see `ReadRow`."""
    row = dict(row)
    unmapped = pop_unread(row)
    key = next(key for key in _TURNS if row.get(key))
    row["messages"] = list(_turns(decoded(row.pop(key), key), key))
    return read_conversation(row, unmapped, reads_text=reads_text)


def read_alpaca_row(row: JsonObject, *, reads_text: bool = True) -> SourceRecord:
    """Read a row of Alpaca's form, with `system` and the earlier turns in `history`; see `ReadRow`."""
    row = dict(row)
    unmapped = pop_unread(row)
    instruction, more, answer = (row.pop(key, None) or "" for key in ("instruction", "input", "output"))
    for key, value in (("instruction", instruction), ("input", more), ("output", answer)):
        if not isinstance(value, str):
            raise RowProblem(f"expected {key} to be a text, saw {brief(value)}")
    history = row.pop("history", None) or []
    if not isinstance(history, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in history):
        raise RowProblem(f"expected history to be pairs of instruction and output, saw {history!r:.60}")
    messages: list[JsonObject] = []
    for asked, answered in history:
        # Earlier answers are context: they are not the answer to this row's question.
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered, "weight": 0}]
    messages.append({"role": "user", "content": "\n".join(part for part in (instruction, more) if part)})
    row["messages"] = [*messages, {"role": "assistant", "content": answer}]
    return read_conversation(row, unmapped, reads_text=reads_text)


def read_completion_row(row: JsonObject, *, reads_text: bool = True) -> SourceRecord:
    """Read TRL's prompt-completion rows and saved rollouts of verifiers; see `ReadRow`.

    Answers in the prompt are context. Verifiers' `info` may be an object as JSON text, `task` is the environment's
    name, `reward` the trajectory's.
    """
    row = dict(row)
    unmapped = pop_unread(row)
    prompt, completion = row.pop("prompt"), row.pop("completion")
    answers = _messages(completion, "assistant", "completion")
    row["messages"] = _messages(prompt, "user", "prompt") + answers
    record = read_conversation(row, unmapped, reads_text=reads_text)
    for conversation in record.conversations:
        messages = conversation.messages
        conversation.num_prompt = len(messages) - len(answers)
        context = (n for n in range(conversation.num_prompt) if messages[n]["role"] == "assistant")
        conversation.excluded |= frozenset(context)
    return record


def _messages(value: Any, role: str, key: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise RowProblem(f"expected {key} to be a text or a list of messages, saw {value!r:.60}")
    return value


def _turns(turns: Any, key: str) -> Iterator[JsonObject]:
    """The turns with the keys of messages, and the joined results of several calls apart."""
    if not isinstance(turns, list) or not turns:
        raise RowProblem(f"expected {key} to be a list that is not empty, saw {brief(turns)}")
    are_joined = False
    for index, item in enumerate(turns):
        turn = decoded(item, f"{key}[{index}]")
        if isinstance(turn, dict) and turn.get("from") is None and "role" in turn:
            yield turn
            continue
        role, value = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
        if (role_of(role) is None and role not in CALLS) or not isinstance(value, str):
            raise RowProblem(
                f"expected {key}[{index}] to have `from`, such as human, gpt, system, function_call or observation, "
                f"and `value`, a text; saw {turn!r:.60}"
            )
        said = {name: turn[name] for name in LOSS_KEYS if name in turn}
        values = value.split(NEXT_RESULT) if are_joined and role_of(role) == "tool" else [value]
        yield from ({**said, "role": role, "content": value} for value in values)
        if role in CALLS:
            are_joined = value.lstrip().startswith("[")
