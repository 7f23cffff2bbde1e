"""Rows of other trainers' data files: ShareGPT, Alpaca, TRL's prompt and completion, traces of verifiers."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from stillhouse.interop.chat_rows import read_openai_row
from stillhouse.interop.loss_keys import LOSS_KEYS
from stillhouse.interop.messages import CALLS
from stillhouse.prompts.row import RowProblem, brief, objects_in, role_of
from stillhouse.types import JsonObject

NEXT_RESULT: Final = "\n</tool_response>\n<tool_response>\n"
"""Between the results of one turn's calls, as LLaMA-Factory joins them in one observation."""
_TURNS: Final = ("conversations", "conversation")


def is_sharegpt_row(row: JsonObject) -> bool:
    """Return whether a row has ShareGPT's turns of `from` and `value`, or messages under that key, or their JSON."""
    turns = row.get("conversations")
    return isinstance(turns, str) or _has_turns(turns, ("from", "role")) or _has_turns(row.get("conversation"))


def _has_turns(value: Any, keys: Sequence[str] = ("from",)) -> bool:
    """Return whether a value is a list of objects with one of `keys`, or of JSON text; the first tells."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, str) or (isinstance(first, dict) and any(key in first for key in keys))


def _from_sharegpt(row: JsonObject) -> JsonObject:
    """Return a row of ShareGPT, also with calls and observations as LLaMA-Factory writes them, in OpenAI's form."""
    key = next(key for key in _TURNS if row.get(key))
    others = {name: value for name, value in row.items() if name != key}
    return {**others, "messages": list(_turns(objects_in(row[key], key), key))}


def _from_alpaca(row: JsonObject) -> JsonObject:
    """Return a row of Alpaca's form in OpenAI's; earlier turns in `history` are context."""
    row = dict(row)
    has_answer, history = "output" in row, row.pop("history", None) or []
    texts = {key: row.pop(key, None) or "" for key in ("instruction", "input", "output")}
    if wrong := next((key for key, text in texts.items() if not isinstance(text, str)), None):
        raise RowProblem(f"expected {wrong} to be a text, saw {brief(texts[wrong])}")
    if not isinstance(history, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in history):
        raise RowProblem(f"expected history to be pairs of instruction and output, saw {brief(history)}")
    messages: list[JsonObject] = []
    for asked, answered in history:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered, "weight": 0}]
    messages.append({"role": "user", "content": "\n".join(filter(None, (texts["instruction"], texts["input"])))})
    if has_answer:
        messages.append({"role": "assistant", "content": texts["output"]})
    return {**row, "messages": messages}


def _from_completion(row: JsonObject) -> JsonObject:
    """Return a prompt-completion row of TRL, or a saved rollout of verifiers, in OpenAI's form.

    Answers in the prompt are context. Verifiers' `info` may be an object as JSON text, `task` is the environment's
    name, `reward` the trajectory's.
    """
    row = dict(row)
    prompt, answers = _messages(row, "prompt", "user"), _messages(row, "completion", "assistant")
    context = [
        {**message, "weight": 0} if role_of(message.get("role")) == "assistant" else message
        for message in objects_in(prompt, "prompt")
    ]
    return {**row, "messages": context + answers}


def _messages(row: JsonObject, key: str, role: str) -> list[Any]:
    value = row.pop(key)
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise RowProblem(f"expected {key} to be a text or a list of messages, saw {brief(value)}")
    return value


def _turns(turns: list[JsonObject], key: str) -> Iterator[JsonObject]:
    """Yield the turns with the keys of messages, and the joined results of several calls apart."""
    are_joined = False
    for index, turn in enumerate(turns):
        role, value = turn.get("from"), turn.get("value")
        if role is None and "role" in turn:
            yield turn
            continue
        if (role_of(role) is None and role not in CALLS) or not isinstance(value, str):
            raise RowProblem(
                f"expected {key}[{index}] to have `from`, such as human, gpt, system, function_call or observation, "
                f"and `value`, a text; saw {brief(turn)}"
            )
        said = {name: turn[name] for name in LOSS_KEYS if name in turn}
        values = value.split(NEXT_RESULT) if are_joined and role_of(role) == "tool" else [value]
        yield from ({**said, "role": role, "content": value} for value in values)
        if role in CALLS:
            are_joined = value.lstrip().startswith("[")


read_sharegpt_row: Final = partial(read_openai_row, as_openai=_from_sharegpt)
read_alpaca_row: Final = partial(read_openai_row, as_openai=_from_alpaca)
read_completion_row: Final = partial(read_openai_row, as_openai=_from_completion)
