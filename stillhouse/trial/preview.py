"""Rows of a dataset before there is one: labelled, filtered and rendered as the student will see them."""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from stillhouse.chat.content import calls_of, text_of
from stillhouse.chat.parts import Part
from stillhouse.chat.rendering import TemplateError
from stillhouse.chat.samples import RenderedSample, render_samples
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import DatasetConfig
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.label import Labelling, labelled_rows
from stillhouse.report.conversation import comparison
from stillhouse.store import exact_json
from stillhouse.types import JsonObject, Message, PromptMetadata, StopReason, Trajectory

Piece = tuple[str, bool]
"""Text, and whether it is learnt."""


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """A trajectory as a row of the dataset."""

    trajectory: Trajectory
    labels: JsonObject
    """A row of `stillhouse.dataset.schema`."""
    is_kept: bool
    """Whether it passes the filters that look at one row at a time."""
    samples: list[list[Piece]]
    """Messages that the student is trained on; the messages as they are where nothing is rendered."""

    @classmethod
    def of(
        cls,
        trajectory: Trajectory,
        metadata: PromptMetadata | None,
        labelling: Labelling,
        dataset: DatasetConfig,
        max_tokens: int | None,
        parts: Set[Part],
    ) -> Self:
        """Return the row of a finished trajectory, which learns `parts` of the assistant's messages.

        Without `max_tokens` the filters' own limit holds. Raise ConfigError if a file or tokenizer of the config cannot
        be used.
        """
        # Imports pandas, for which the first line of a preview should not wait.
        from stillhouse.dataset.select.filters import passes

        labels = labelled_rows([LabelInput.of(trajectory, metadata)], labelling)
        (is_kept,) = passes(labels, dataset, max_tokens)
        return cls(trajectory, labels[0], is_kept, _samples(trajectory, labelling, parts))


def preview_text(row: PreviewRow, title: str) -> RenderableType:
    """Return the row for a terminal: what is learnt in colour, and below it what becomes of it."""
    parts: list[RenderableType] = [Rule(title, align="left", style="dim")]
    for sample in row.samples:
        styled = [(text, "bold green" if is_learnt else "dim") for text, is_learnt in sample]
        parts.append(Text.assemble(*styled))
    return Group(*parts, Text(f"\u2192 {', '.join(_facts(row))}", style="bold"), "")


def _facts(row: PreviewRow) -> Iterator[str]:
    labels = row.labels
    yield "kept" if row.is_kept else "dropped by the filters"
    if row.trajectory.error is not None:
        yield f"failed: {row.trajectory.error['message']}"
    verdict = {True: "right", False: "wrong", None: "unverified"}[labels.get("verified")]
    yield comparison(labels) if labels.get("compared") is not None else verdict
    if row.trajectory.stop_reason is not StopReason.ANSWERED:
        yield f"stopped by {row.trajectory.stop_reason}".replace("_", " ")
    if labels.get("num_tokens") is not None:
        yield f"{labels['num_supervised_tokens']:,} of {labels['num_tokens']:,} tokens learnt"
    if labels.get("template_problem"):
        yield f"template: {labels['template_problem']}"


def _samples(trajectory: Trajectory, labelling: Labelling, parts: Set[Part]) -> list[list[Piece]]:
    if not labelling.tokenizer:
        return [[(_plain(message), message["role"] == "assistant") for message in trajectory.messages]]
    tokenizer = load_tokenizer(labelling.tokenizer, labelling.chat_template_kwargs)
    try:
        samples = render_samples(tokenizer, trajectory.messages, trajectory.tools, parts)
    except TemplateError:
        # The labels hold the problem.
        return []
    return [[(tokenizer.decode(ids), is_learnt) for ids, is_learnt in _runs(sample)] for sample in samples]


def _runs(sample: RenderedSample) -> Iterator[tuple[list[int], bool]]:
    """Yield the token ids of a sample in runs that are learnt or not."""
    pairs = zip(sample.token_ids, sample.loss_mask, strict=True)
    for is_learnt, run in groupby(pairs, key=lambda pair: pair[1]):
        yield [token for token, _ in run], is_learnt


def _plain(message: Message) -> str:
    calls = "".join(f"\n{call.name}({exact_json.dumps(call.arguments).decode()})" for call in calls_of(message))
    return f"{message['role']}: {text_of(message)}{calls}\n"
