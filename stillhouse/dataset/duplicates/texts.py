"""The texts by which rows are compared, from a trajectory's messages or from a Parquet file's."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.chat.content import calls_of, text_of
from stillhouse.dataset.words import normalised
from stillhouse.errors import InputError
from stillhouse.types import Message

_MESSAGES: Final = "messages"
_TURNS: Final = "turns"
_BATCH_ROWS: Final = 1024


class ComparedTexts(NamedTuple):
    """Normalised texts of a prompt and of what the model wrote; an empty text is compared with nothing."""

    prompt: str
    """System and user messages before the first sampled message."""
    row: str
    """The prompt and what the model wrote in all turns; empty if it wrote nothing."""
    prompt_content: str
    """The prompt without system messages, unless it has no others: a long system prompt shared by all rows would make
    all of them similar."""
    row_content: str
    """`prompt_content` and what the model wrote; empty if it wrote nothing."""


def texts_of(messages: Sequence[Message], num_turns: int) -> ComparedTexts:
    """The texts of a conversation whose last `num_turns` assistant messages were sampled.

    Arguments of tool calls are compared as JSON with sorted keys, however a file stores them.
    """
    start = _first_sampled(messages, num_turns)
    given = [message for message in messages[:start] if message["role"] in ("system", "user")]
    users = [message for message in given if message["role"] == "user"]
    prompt = normalised("\n".join(map(text_of, given)))
    content = normalised("\n".join(map(text_of, users or given)))
    sampled = normalised(
        "\n".join(_assistant_text(message) for message in messages[start:] if message["role"] == "assistant")
    )
    return ComparedTexts(prompt, _row(prompt, sampled), content, _row(content, sampled))


def _row(prompt: str, sampled: str) -> str:
    return f"{prompt} {sampled}".strip() if sampled else ""


def _first_sampled(messages: Sequence[Message], num_turns: int) -> int:
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return places[max(0, len(places) - num_turns)] if places and num_turns else len(messages)


def _assistant_text(message: Message) -> str:
    parts = [message.get("reasoning_content") or message.get("reasoning") or "", text_of(message)]
    for call in calls_of(message):
        parts += [call.name, _with_sorted_keys(call.arguments)]
    return "\n".join(parts)


def _with_sorted_keys(arguments: str) -> str:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() if isinstance(value, dict) else arguments


def read_texts(path: Path, selected: npt.NDArray[np.bool_] | None = None) -> Iterator[ComparedTexts]:
    """Texts of the rows of a Parquet file with a column `messages` in the OpenAI chat form.

    Messages are a list of objects, a list of JSON texts, or one JSON text. Without a column `turns` all assistant
    messages count as sampled.

    `selected`, shape `[num_rows]`, tells which rows to read; row groups without any are skipped.

    Raises:
        InputError: the messages of a row are no conversation.
    """
    with pq.ParquetFile(path) as file:
        columns = [name for name in (_MESSAGES, _TURNS) if name in file.schema_arrow.names]
        number = 0
        for group in range(file.num_row_groups):
            end = number + file.metadata.row_group(group).num_rows
            if selected is not None and not selected[number:end].any():
                number = end
                continue
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns):
                mask = np.ones(len(batch), bool) if selected is None else selected[number : number + len(batch)]
                for place, row in zip(np.flatnonzero(mask), batch.filter(pa.array(mask)).to_pylist(), strict=True):
                    yield _texts_of_row(row, path, number + int(place))
                number += len(batch)


def _texts_of_row(row: dict[str, Any], path: Path, number: int) -> ComparedTexts:
    try:
        messages = [_object(item) for item in _object(row[_MESSAGES])]
        turns = row.get(_TURNS)
        return texts_of(messages, len(messages) if turns is None else turns)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}, row {number}: expected messages in the OpenAI chat form, saw {repr(row[_MESSAGES])[:80]} "
            f"({type(error).__name__}: {error}); mend or remove the row"
        ) from error


def _object(value: Any) -> Any:
    return orjson.loads(value) if isinstance(value, str) else value
