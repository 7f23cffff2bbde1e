"""Turns chunks of a source's rows into samples: rendered, truncated, and split into training and validation."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.parts import ALL_PARTS, Part
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.round_trip import turn_tokens
from stillhouse.chat.samples import RenderedSample, render_all_spans, tokenise_spans
from stillhouse.config.training import SftConfig, SftSource
from stillhouse.dataset.read import SplitName
from stillhouse.errors import InputError
from stillhouse.prompts.row import RowProblem
from stillhouse.store.fingerprint import unit_interval
from stillhouse.training.sft.row_forms import (
    TrainingConversation,
    answer_problem,
    dataset_conversation,
    parse_conversation,
)
from stillhouse.training.sft.sources import SplitRow, read_source_rows

SCHEMA: Final = pa.schema(
    [
        pa.field("token_ids", pa.list_(pa.int32())),
        pa.field("loss_mask", pa.list_(pa.bool_())),
        pa.field("prompt_id", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("row_id", pa.string()),
        pa.field("messages", pa.list_(pa.int32())),
        pa.field("starts", pa.list_(pa.int32())),
    ]
)
"""A row is a sample. `row_id` is the column `id` of its row in a dataset of this project, `messages` are the indices of
the row's messages that it trains, and `starts` those of their first tokens."""
_CHUNK_ROWS: Final = 256

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rendering:
    """How rows become samples."""

    max_length: int
    """Most tokens of a sample."""
    too_long: Literal["truncate", "drop"]
    parts: frozenset[Part]
    """Parts of the assistant's messages that are trained on."""

    @classmethod
    def of(cls, config: SftConfig, max_length: int) -> "Rendering":
        return cls(max_length, config.too_long, frozenset(config.train_on))


def sample_length(max_length: int, num_positions: int | None) -> int:
    """Return the most tokens of a sample: `max_length`, or the model's number of positions if that is lower."""
    if num_positions is None or max_length <= num_positions:
        return max_length
    logger.info(
        "student.max_length is %d, but the student has %d positions: longer rows are too long",
        max_length,
        num_positions,
    )
    return num_positions


class Chunk(NamedTuple):
    """Consecutive rows of one source."""

    source: int
    validation_share: float
    rows: list[SplitRow]


class RenderedChunk(NamedTuple):
    source: int
    batches: dict[SplitName, pa.RecordBatch]
    """Samples in the order of their rows, as `SCHEMA` has them."""
    counts: Counter[str]
    """`rows`, of which `rejected`, `truncated`, `dropped` and `unlearnt` (without anything to train on); and
    `repeated_tokens`, in several samples because the template renders history differently later on."""
    problems: list[str]
    """Place and reason of each row that is `rejected`: it has an answer that must not be learnt."""


def chunks_of(sources: Sequence[SftSource]) -> Iterator[Chunk]:
    """Yield all rows of all sources, in order; raises as `read_source_rows`."""
    for number, source in enumerate(sources):
        rows = read_source_rows(source)
        while chunk_rows := list(islice(rows, _CHUNK_ROWS)):
            yield Chunk(number, source.validation_share, chunk_rows)


def render_chunk(tokenizer: PreTrainedTokenizerBase, chunk: Chunk, rendering: Rendering) -> RenderedChunk:
    """Return the samples of `chunk`.

    A row is for validation if its source's split says so, or if its prompt's hash falls into the source's share.
    """
    sound, problems = _sound(tokenizer, chunk.rows)
    inputs = [(conversation.messages, conversation.tools) for _, conversation in sound]
    rendered_spans = render_all_spans(tokenizer, inputs, with_pieces=rendering.parts != ALL_PARTS)
    row_spans = [
        [
            [span._replace(message=None) if span.message in conversation.excluded else span for span in spans]
            for spans in _rendered(samples, row)
        ]
        for (row, conversation), samples in zip(sound, rendered_spans, strict=True)
    ]
    tokens = iter(tokenise_spans(tokenizer, [spans for samples in row_spans for spans in samples], rendering.parts))
    counts = Counter({"rows": len(chunk.rows), "rejected": len(problems)})
    columns: dict[SplitName, list[tuple[Any, ...]]] = {"train": [], "validation": []}
    for (row, conversation), samples in zip(sound, row_spans, strict=True):
        rendered = [_rendered(sample, row) for sample in islice(tokens, len(samples))]
        trainable = [_up_to_last_target(sample) for sample in rendered if any(sample.loss_mask[1:])]
        if not trainable:
            _require_answer(row, conversation, rendering)
            counts["unlearnt"] += 1
        kept = _fitted(trainable, rendering, counts)
        counts["repeated_tokens"] += sum(sample.loss_mask.index(True) for sample in kept[1:])
        is_validation = (
            row.split == "validation" or unit_interval("validation", conversation.prompt_id) < chunk.validation_share
        )
        columns["validation" if is_validation else "train"] += [
            (
                *(sample.token_ids, sample.loss_mask, conversation.prompt_id, conversation.tag, conversation.row_id),
                [start.message for start in sample.starts],
                [start.token for start in sample.starts],
            )
            for sample in kept
        ]
    return RenderedChunk(chunk.source, {split: _batch(rows) for split, rows in columns.items()}, counts, problems)


def _sound(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[SplitRow]
) -> tuple[list[tuple[SplitRow, TrainingConversation]], list[str]]:
    """Return the rows that can be learnt with their conversations, and what is wrong with the others."""
    sound: list[tuple[SplitRow, TrainingConversation]] = []
    problems: list[str] = []
    tokens = turn_tokens(tokenizer)
    for row in rows:
        conversation = _conversation(row)
        if not row.is_own and (problem := answer_problem(conversation, tokens)):
            # Without the folder, since facts are published with the student.
            problems.append(f"{Path(row.row.place).name}: {problem}")
        else:
            sound.append((row, conversation))
    return sound, problems


def _conversation(row: SplitRow) -> TrainingConversation:
    place, value, problem = row.row
    try:
        if problem is not None:
            raise RowProblem(problem)
        return dataset_conversation(value) if row.is_own else parse_conversation(value)
    except RowProblem as error:
        raise InputError(f"{place}: {error}") from error


def _rendered(value: T | TemplateError, row: SplitRow) -> T:
    if isinstance(value, TemplateError):
        raise InputError(
            f"{row.row.place}: cannot be rendered with the student's chat template: {value}. Mend or drop the row, or "
            "train a student whose template knows such conversations",
            code="template",
        ) from value
    return value


def _up_to_last_target(sample: RenderedSample) -> RenderedSample:
    """Return the sample up to its last target; the first token is no target, since nothing predicts it."""
    end = len(sample.loss_mask) - sample.loss_mask[::-1].index(True)
    starts = tuple(start for start in sample.starts if start.token < end)
    return RenderedSample(sample.token_ids[:end], [False, *sample.loss_mask[1:end]], starts)


def _require_answer(row: SplitRow, conversation: TrainingConversation, rendering: Rendering) -> None:
    """Raise if nothing can be learnt from the row; an answer without the parts that the config trains on is fine."""
    learnt = (one for index, one in enumerate(conversation.messages) if index not in conversation.excluded)
    if rendering.parts == ALL_PARTS or not any(message["role"] == "assistant" for message in learnt):
        roles = ", ".join(message["role"] for message in conversation.messages)
        weighted = " of a weight above 0" if conversation.excluded else ""
        raise InputError(
            f"{row.row.place}: nothing to learn in a conversation with roles [{roles}]; expected an assistant message"
            f"{weighted}. Drop the row",
            code="nothing-to-learn",
        )


def _fitted(samples: list[RenderedSample], rendering: Rendering, counts: Counter[str]) -> list[RenderedSample]:
    """Return the samples truncated to the maximum length; none where one is too long and long rows are dropped."""
    if all(len(sample.token_ids) <= rendering.max_length for sample in samples):
        return samples
    if rendering.too_long == "drop":
        counts["dropped"] += 1
        return []
    counts["truncated"] += 1
    end = rendering.max_length
    cut = [sample._replace(token_ids=sample.token_ids[:end], loss_mask=sample.loss_mask[:end]) for sample in samples]
    return [_up_to_last_target(sample) for sample in cut if any(sample.loss_mask)]


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
