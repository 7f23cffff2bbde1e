"""Rows of a source to samples: rendered, cut to length and split, a chunk at a time, in this process or in others."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.parts import ALL_PARTS, Part
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.samples import RenderedSample, Span, render_all_spans, tokenise_spans
from stillhouse.config.training import SftConfig, SftSource
from stillhouse.dataset.read import SplitName
from stillhouse.errors import InputError
from stillhouse.prompts.row import RowProblem
from stillhouse.store.fingerprint import unit_interval
from stillhouse.training.sft.row_forms import Conversation, conversation_of
from stillhouse.training.sft.sources import SplitRow, read_source_rows

SCHEMA: Final = pa.schema(
    [
        pa.field("token_ids", pa.list_(pa.int32())),
        pa.field("loss_mask", pa.list_(pa.bool_())),
        pa.field("prompt_id", pa.string()),
        pa.field("tag", pa.string()),
    ]
)
_CHUNK_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class Rendering:
    """How rows become samples."""

    max_length: int
    """Most tokens of a sample."""
    too_long: Literal["truncate", "drop"]
    parts: frozenset[Part]
    """What of the assistant's messages is learnt."""

    @classmethod
    def of(cls, config: SftConfig, max_length: int) -> "Rendering":
        """What a config says."""
        chosen: dict[Part, bool] = {
            "text": config.train_on_text,
            "reasoning": config.train_on_reasoning,
            "tool_calls": config.train_on_tool_calls,
        }
        return cls(max_length, config.too_long, frozenset(part for part, learnt in chosen.items() if learnt))


class Chunk(NamedTuple):
    """Rows of one source that follow each other."""

    source: int
    """Number of the source."""
    validation_share: float
    rows: list[SplitRow]


class RenderedChunk(NamedTuple):
    """The samples of a chunk."""

    source: int
    batches: dict[SplitName, pa.RecordBatch]
    """Samples in the order of their rows, as `SCHEMA` has them."""
    counts: Counter[str]
    """`rows`, of which `truncated`, `dropped` and `unlearnt` (in which nothing is that is to be learnt); and
    `repeated_tokens`: read once more, since the template renders history another way later on."""


def chunks_of(sources: Sequence[SftSource]) -> Iterator[Chunk]:
    """All rows of all sources, in order.

    Raises:
        ConfigError, InputError: as `read_source_rows`.
    """
    for number, source in enumerate(sources):
        rows = read_source_rows(source)
        while some := list(islice(rows, _CHUNK_ROWS)):
            yield Chunk(number, source.validation_share, some)


def render_chunk(tokenizer: PreTrainedTokenizerBase, chunk: Chunk, rendering: Rendering) -> RenderedChunk:
    """The samples of `chunk`.

    A row validates when its source's own split says so, or its prompt's draw falls below the source's share.

    Raises:
        InputError: a row is no conversation, cannot be rendered, or says nothing that can be learnt.
    """
    conversations = [_conversation(row) for row in chunk.rows]
    asked = [(one.messages, one.tools) for one in conversations]
    found = render_all_spans(tokenizer, asked, with_pieces=rendering.parts != ALL_PARTS)
    texts = [_spans(*known) for known in zip(chunk.rows, conversations, found, strict=True)]
    tokens = iter(tokenise_spans(tokenizer, [spans for samples in texts for spans in samples], rendering.parts))
    counts = Counter({"rows": len(chunk.rows)})
    columns: dict[SplitName, list[tuple[Any, ...]]] = {"train": [], "validation": []}
    for row, one, samples in zip(chunk.rows, conversations, texts, strict=True):
        rendered = [_sound(sample, row) for sample in islice(tokens, len(samples))]
        learnt = [_up_to_last_target(sample) for sample in rendered if any(sample.loss_mask[1:])]
        if not learnt:
            _refuse_without_answer(row, one, rendering)
            counts["unlearnt"] += 1
        kept = _fitted(learnt, rendering, counts)
        counts["repeated_tokens"] += sum(sample.loss_mask.index(True) for sample in kept[1:])
        validates = row.split == "validation" or unit_interval("validation", one.prompt_id) < chunk.validation_share
        columns["validation" if validates else "train"] += [(*sample, one.prompt_id, one.tag) for sample in kept]
    return RenderedChunk(chunk.source, {split: _batch(rows) for split, rows in columns.items()}, counts)


def _conversation(row: SplitRow) -> Conversation:
    place, value, problem = row.row
    try:
        if problem is not None:
            raise RowProblem(problem)
        return conversation_of(value)
    except RowProblem as error:
        raise InputError(f"{place}: {error}") from error


def _spans(row: SplitRow, one: Conversation, samples: list[list[Span]] | TemplateError) -> list[list[Span]]:
    if isinstance(samples, TemplateError):
        raise InputError(_not_rendered(row, samples)) from samples
    return [[span._replace(message=None) if span.message in one.excluded else span for span in s] for s in samples]


def _sound(sample: RenderedSample | TemplateError, row: SplitRow) -> RenderedSample:
    if isinstance(sample, TemplateError):
        raise InputError(_not_rendered(row, sample)) from sample
    return sample


def _not_rendered(row: SplitRow, error: TemplateError) -> str:
    return (
        f"{row.row.place}: cannot be rendered with the student's chat template: {error}. Mend or drop the row, or "
        "train a student whose template knows such conversations"
    )


def _up_to_last_target(sample: RenderedSample) -> RenderedSample:
    """Without what nothing is learnt from; the first token is no target, since nothing predicts it."""
    end = len(sample.loss_mask) - sample.loss_mask[::-1].index(True)
    return RenderedSample(sample.token_ids[:end], [False, *sample.loss_mask[1:end]])


def _refuse_without_answer(row: SplitRow, one: Conversation, rendering: Rendering) -> None:
    """A row may lack what the config chooses to learn, but not every answer."""
    answers = [
        index
        for index, message in enumerate(one.messages)
        if message["role"] == "assistant" and index not in one.excluded
    ]
    if not answers or rendering.parts == ALL_PARTS:
        roles = ", ".join(message["role"] for message in one.messages)
        weighted = " of a weight above 0" if one.excluded else ""
        raise InputError(
            f"{row.row.place}: nothing to learn in a conversation with roles [{roles}]; expected an assistant message"
            f"{weighted}. Drop the row"
        )


def _fitted(samples: list[RenderedSample], rendering: Rendering, counts: Counter[str]) -> list[RenderedSample]:
    """The samples that are trained on: cut to length, or none where one of them is too long."""
    if all(len(sample.token_ids) <= rendering.max_length for sample in samples):
        return samples
    if rendering.too_long == "drop":
        counts["dropped"] += 1
        return []
    counts["truncated"] += 1
    cut = [RenderedSample(ids[: rendering.max_length], mask[: rendering.max_length]) for ids, mask in samples]
    return [_up_to_last_target(sample) for sample in cut if any(sample.loss_mask)]


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
