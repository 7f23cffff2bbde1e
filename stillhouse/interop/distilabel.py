"""Rows of distilabel's pipelines, as jsonl, Parquet or what `Distiset.save_to_disk` writes.

Columns as version 1.5 names them: `instruction` (with `system_prompt`), `messages` or `conversation` hold what was
asked, `generation`, `generations` or `response` what was answered, one or a list of it; `model_name` who answered; and
`distilabel_metadata` the raw texts and, under `statistics_TASK`, tokens. A null answer is a failed one.
"""

from typing import Any, Final

from stillhouse.interop.messages import first_answer, read_messages
from stillhouse.interop.source_record import Conversation, Read, Unmapped, take
from stillhouse.prompts.row import RowProblem
from stillhouse.types import JsonObject, Message, TokenUsage

_ANSWERS: Final = ("generation", "generations", "response")
_ASKED: Final = ("conversation", "messages", "instruction", "prompt")
_STATISTICS: Final = "statistics_"
_MODELS: Final = ("model_name", "generation_model", "generation_models")
_OF_ANSWERS: Final = dict.fromkeys(
    (
        "rating",
        "ratings",
        "rationale",
        "rationales",
        "score",
        "scores",
        "quality",
        "complexity",
        "keep_row_after_filter",
    ),
    "what a pipeline says of its answers; set dataset.judge to have them graded here",
) | {"prompt_id": "another program's name of the prompt"}


def is_distilabel_row(row: JsonObject) -> bool:
    """Whether a row has what only distilabel's pipelines write."""
    return "distilabel_metadata" in row or (
        bool(row.keys() & set(_ASKED)) and bool(row.keys() & {*_ANSWERS, "conversation"})
    )


def read_distilabel_row(row: JsonObject) -> Read:
    """The conversations of a row, one for each answer; see `ReadRow`."""
    row = dict(row)
    unmapped = take(row, _OF_ANSWERS)
    about = row.pop("distilabel_metadata", None) or {}
    if raw := [key for key in about if not key.startswith(_STATISTICS)]:
        unmapped.append(Unmapped("raw texts and figures of the pipeline's steps", "distilabel_metadata", raw))
    asked = _take_asked(row)
    told = next((row.pop(key) for key in _ANSWERS if key in row), None)
    models = next((row.pop(key) for key in _MODELS if key in row), None)
    last = asked[-1]["content"] if asked[-1]["role"] == "assistant" else None
    said = {message["content"] for message in asked if isinstance(message.get("content"), str)}
    for key in (*_ASKED, *_ANSWERS, "system_prompt"):
        other = row.pop(key, None)
        if other is not None and (not isinstance(other, str) or other not in said):
            unmapped.append(Unmapped("another column holds the conversation", key, other))
    if last is not None:
        # A formatting step has put the answer into the conversation.
        if told is not None and not (isinstance(told, str) and isinstance(last, str) and last in told):
            unmapped.append(Unmapped("another answer than that of the conversation", "generation", told))
        start = first_answer(asked)
        return Read([Conversation(asked, start, row, model=_at(models, 0), usage=_usage(about, 0))], unmapped)
    answers = told if isinstance(told, list) else [told]
    if not answers:
        return Read(unmapped=[*unmapped, Unmapped("no answer in a row", "generations", told)])
    found = [
        _conversation(asked, answer, row, _at(models, index), _usage(about, index))
        for index, answer in enumerate(answers)
    ]
    return Read(found, unmapped)


def _conversation(
    asked: list[Message], answer: Any, metadata: JsonObject, model: str | None, usage: TokenUsage
) -> Conversation:
    if answer is None:
        failure = {"kind": "distilabel", "message": "the pipeline got no answer"}
        return Conversation(asked, len(asked), metadata, model=model, failure=failure)  # type: ignore[arg-type]
    if not isinstance(answer, str):
        raise RowProblem(f"expected an answer to be text or null, saw {type(answer).__name__} {answer!r:.60}")
    (said,) = read_messages([{"role": "assistant", "content": answer}], "generation")
    return Conversation([*asked, said], len(asked), metadata, model=model, usage=usage)


def _take_asked(row: JsonObject) -> list[Message]:
    """Removes the column that holds what was asked; the messages in it."""
    for key in ("conversation", "messages"):
        if row.get(key):
            return read_messages(row.pop(key), key)
    instruction = row.pop("instruction" if "instruction" in row else "prompt", None)
    if not isinstance(instruction, str):
        expected = f"expected one of {', '.join(_ASKED)}"
        raise RowProblem(f"{expected}; saw the columns {', '.join(row) or 'none'}")
    asked = [{"role": "user", "content": instruction}]
    if isinstance(system := row.pop("system_prompt", None), str) and system:
        asked.insert(0, {"role": "system", "content": system})
    return read_messages(asked)


def _at(value: Any, index: int) -> str | None:
    """The name of the model that gave an answer; pipelines write one for all, or one for each."""
    if isinstance(value, list):
        value = value[index] if index < len(value) else None
    return value if isinstance(value, str) else None


def _usage(about: Any, index: int) -> TokenUsage:
    """Tokens of an answer; unknown where several tasks counted theirs, since the row does not say whose it is."""
    counted = [value for key, value in about.items() if key.startswith(_STATISTICS)] if isinstance(about, dict) else []
    if len(counted) != 1:
        return {}
    entry = counted[0][index] if isinstance(counted[0], list) and index < len(counted[0]) else counted[0]
    usage: TokenUsage = {}
    for theirs, ours in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        tokens = entry.get(theirs) if isinstance(entry, dict) else None
        if isinstance(tokens, list):
            tokens = tokens[index] if index < len(tokens) else None
        if isinstance(tokens, int) and tokens > 0:
            usage[ours] = tokens  # type: ignore[literal-required]
    return usage
