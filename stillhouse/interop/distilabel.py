"""Rows of distilabel's pipelines, as jsonl, Parquet or what `Distiset.save_to_disk` writes.

Columns of version 1.5: `instruction` (with `system_prompt`), `messages` or `conversation` hold the prompt,
`generation`, `generations` or `response` one answer or a list, `model_name` the model, and `distilabel_metadata` raw
texts and, under `statistics_TASK`, tokens. A null answer is a failed one.
"""

from typing import Any, Final

from stillhouse.interop.messages import first_answer, read_messages
from stillhouse.interop.source_record import SourceConversation, SourceRecord, Unmapped, pop_unmapped
from stillhouse.prompts.row import RowProblem
from stillhouse.types import ErrorRecord, JsonObject, Message, TokenUsage

_ANSWER_COLUMNS: Final = ("generation", "generations", "response")
_PROMPT_COLUMNS: Final = ("conversation", "messages", "instruction", "prompt")
_STATISTICS: Final = "statistics_"
_MODEL_COLUMNS: Final = ("model_name", "generation_model", "generation_models")
_UNMAPPED: Final = dict.fromkeys(
    [
        "rating",
        "ratings",
        "rationale",
        "rationales",
        "score",
        "scores",
        "quality",
        "complexity",
        "keep_row_after_filter",
    ],
    "what a pipeline says of its answers; set dataset.judge to have them graded here",
) | {"prompt_id": "another program's name of the prompt"}


def is_distilabel_row(row: JsonObject) -> bool:
    """Whether a row has columns that only distilabel's pipelines write."""
    return "distilabel_metadata" in row or (
        bool(row.keys() & set(_PROMPT_COLUMNS)) and bool(row.keys() & {*_ANSWER_COLUMNS, "conversation"})
    )


def read_distilabel_row(row: JsonObject) -> SourceRecord:
    """The conversations of a row, one for each answer; see `ReadRow`."""
    row = dict(row)
    unmapped = pop_unmapped(row, _UNMAPPED)
    details = row.pop("distilabel_metadata", None) or {}
    if raw := [key for key in details if not key.startswith(_STATISTICS)]:
        unmapped.append(Unmapped("raw texts and figures of the pipeline's steps", "distilabel_metadata", raw))
    prompt = _pop_prompt(row)
    answer = next((row.pop(key) for key in _ANSWER_COLUMNS if key in row), None)
    models = next((row.pop(key) for key in _MODEL_COLUMNS if key in row), None)
    last = prompt[-1]["content"] if prompt[-1]["role"] == "assistant" else None
    contents = {message["content"] for message in prompt if isinstance(message.get("content"), str)}
    for key in (*_PROMPT_COLUMNS, *_ANSWER_COLUMNS, "system_prompt"):
        other = row.pop(key, None)
        if other is not None and (not isinstance(other, str) or other not in contents):
            unmapped.append(Unmapped("another column holds the conversation", key, other))
    if last is not None:
        # A formatting step has put the answer into the conversation.
        if answer is not None and not (isinstance(answer, str) and isinstance(last, str) and answer in last):
            unmapped.append(Unmapped("another answer than that of the conversation", "generation", answer))
        start = first_answer(prompt)
        conversation = SourceConversation(prompt, start, row, model=_model(models, 0), usage=_usage(details, 0))
        return SourceRecord([conversation], unmapped)
    answers = answer if isinstance(answer, list) else [answer]
    if not answers:
        return SourceRecord(unmapped=[*unmapped, Unmapped("no answer in a row", "generations", answer)])
    conversations = [
        _conversation(prompt, text, row, _model(models, index), _usage(details, index))
        for index, text in enumerate(answers)
    ]
    return SourceRecord(conversations, unmapped)


def _conversation(
    prompt: list[Message], answer: Any, metadata: JsonObject, model: str | None, usage: TokenUsage
) -> SourceConversation:
    if answer is None:
        failure: ErrorRecord = {"kind": "distilabel", "message": "the pipeline got no answer"}
        return SourceConversation(prompt, len(prompt), metadata, model=model, failure=failure)
    if not isinstance(answer, str):
        raise RowProblem(f"expected an answer to be text or null, saw {type(answer).__name__} {answer!r:.60}")
    completion = read_messages([{"role": "assistant", "content": answer}], "generation")
    return SourceConversation([*prompt, *completion], len(prompt), metadata, model=model, usage=usage)


def _pop_prompt(row: JsonObject) -> list[Message]:
    """Pops the column that holds the prompt; returns its messages."""
    for key in ("conversation", "messages"):
        if row.get(key):
            return read_messages(row.pop(key), key)
    instruction = row.pop("instruction" if "instruction" in row else "prompt", None)
    if not isinstance(instruction, str):
        expected = f"expected one of {', '.join(_PROMPT_COLUMNS)}"
        raise RowProblem(f"{expected}; saw the columns {', '.join(row) or 'none'}")
    messages = [{"role": "user", "content": instruction}]
    if isinstance(system := row.pop("system_prompt", None), str) and system:
        messages.insert(0, {"role": "system", "content": system})
    return read_messages(messages)


def _model(models: Any, index: int) -> str | None:
    """The model of an answer; pipelines write one for all, or one for each."""
    if isinstance(models, list):
        models = models[index] if index < len(models) else None
    return models if isinstance(models, str) else None


def _usage(details: Any, index: int) -> TokenUsage:
    """Tokens of an answer; unknown if several tasks report some, since the row does not say which task answered."""
    items = details.items() if isinstance(details, dict) else ()
    statistics = [value for key, value in items if key.startswith(_STATISTICS)]
    if len(statistics) != 1:
        return {}
    (entry,) = statistics
    if isinstance(entry, list) and index < len(entry):
        entry = entry[index]
    usage: TokenUsage = {}
    for theirs, ours in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        tokens = entry.get(theirs) if isinstance(entry, dict) else None
        if isinstance(tokens, list):
            tokens = tokens[index] if index < len(tokens) else None
        if isinstance(tokens, int) and tokens > 0:
            usage[ours] = tokens  # type: ignore[literal-required]
    return usage
