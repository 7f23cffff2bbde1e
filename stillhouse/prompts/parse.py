"""A prompts source as distinct prompts, their metadata, a report on every other row, and the held-out split."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from stillhouse.config import PromptsConfig, SamePrompt
from stillhouse.errors import InputError
from stillhouse.prompts.row import RowProblem, first_problems, parse_row
from stillhouse.prompts.sources import SourceRow, read_source
from stillhouse.store.fingerprint import unit_interval, variant_id, without_variant
from stillhouse.types import Prompt, PromptMetadata

PROMPT_SOURCE: Final = "prompt_source"
"""Key of the metadata that holds the name of a prompt's source, where a config has several."""


@dataclass(slots=True)
class ParseReport:
    """Counts of rows: `rows_read == prompts + duplicates + len(malformed)`."""

    rows_read: int = 0
    malformed: list[str] = field(default_factory=list)
    """One entry for each row left out: place, what was seen, what was expected."""
    duplicates: int = 0
    """Rows whose prompt had been read before, and that are not kept apart."""
    conflicts: list[str] = field(default_factory=list)
    """One entry for each row that repeats a prompt with other metadata, and what became of it."""
    notes: Counter[str] = field(default_factory=Counter)
    """Rows by what a reader of the config would not expect of them."""


@dataclass(frozen=True, slots=True)
class ParsedPrompts:
    prompts: list[Prompt]
    metadata: dict[str, PromptMetadata]
    """By prompt id; one entry for each prompt."""
    report: ParseReport


def parse_prompts(config: PromptsConfig, failure_budget: float = 0.1) -> ParsedPrompts:
    """Return the distinct prompts of a source, or of several in turn, up to `max_prompts` of each.

    Raises ConfigError if the source's format is unknown; InputError if the source is missing or empty, lacks a row of
    `config.entries`, has no usable row, or has a larger share of malformed rows than `failure_budget`.
    """
    report = ParseReport()
    parsed = _DistinctPrompts(config.same_prompt, report)
    for name, row in _rows(config, parsed.prompts):
        report.rows_read += 1
        problem = row.problem
        if problem is None:
            try:
                prompt, metadata = parse_row(row.value, config, report.notes)
            except RowProblem as error:
                problem = str(error)
        if problem is not None:
            report.malformed.append(f"{row.place}: {problem}")
            continue
        if name is not None:
            metadata.metadata[PROMPT_SOURCE] = name
        parsed.add(row.place, prompt, metadata)
    _check(config, report, len(parsed.prompts), failure_budget)
    return ParsedPrompts(parsed.prompts, parsed.metadata, report)


class _DistinctPrompts:
    """Prompts and metadata by prompt id; rows that repeat a prompt are counted in `report`."""

    def __init__(self, same_prompt: SamePrompt, report: ParseReport) -> None:
        self.prompts: list[Prompt] = []
        self.metadata: dict[str, PromptMetadata] = {}
        self._same_prompt = same_prompt
        self._report = report
        self._first_places: dict[str, str] = {}
        self._variants: dict[str, list[PromptMetadata]] = {}
        """Metadata of each prompt as they were read; of one row, unless rows are kept apart."""

    def add(self, place: str, prompt: Prompt, metadata: PromptMetadata) -> None:
        """Add a row's prompt, unless it repeats an earlier one and is not kept apart."""
        variants = self._variants.setdefault(prompt.id, [])
        if not variants:
            self._first_places[prompt.id] = place
            variants.append(metadata)
            self.prompts.append(prompt)
            self.metadata[prompt.id] = metadata
            return
        if metadata in variants:
            self._report.duplicates += 1
            return
        outcome = {"first": "the first stands", "merge": "merged", "keep": "kept apart"}[self._same_prompt]
        first_place = self._first_places[prompt.id]
        self._report.conflicts.append(f"{place}: same prompt as {first_place} with other metadata; {outcome}")
        if self._same_prompt == "keep":
            kept = variant_id(prompt.id, len(variants))
            variants.append(metadata)
            self.prompts.append(replace(prompt, id=kept))
            self.metadata[kept] = replace(metadata, prompt_id=kept)
            return
        self._report.duplicates += 1
        if self._same_prompt == "merge":
            self.metadata[prompt.id] = _merged(self.metadata[prompt.id], metadata)


def _merged(first: PromptMetadata, later: PromptMetadata) -> PromptMetadata:
    """Return `first` with what only `later` has; a verifier belongs to its answer."""
    answered = later if first.expected_answer is None and later.expected_answer is not None else first
    return replace(
        first,
        expected_answer=answered.expected_answer,
        verifier=answered.verifier,
        tag=later.tag if first.tag is None else first.tag,
        metadata={**later.metadata, **first.metadata},
    )


def _rows(config: PromptsConfig, prompts: Sequence[Prompt]) -> Iterator[tuple[str | None, SourceRow]]:
    """Yield name and row of each source until `prompts`, which the caller fills, has `max_prompts` of it."""
    sources: list[tuple[str | None, str]] = [*config.sources.items()] or [(None, config.source)]
    for name, source in sources:
        num_before = len(prompts)
        for row in _selected(source, config.entries):
            yield name, row
            if len(prompts) - num_before == config.max_prompts:
                break


def _selected(source: str, entries: Sequence[int]) -> Iterator[SourceRow]:
    """Yield rows of the source, or those whose numbers are in `entries`."""
    rows = read_source(source)
    if not entries:
        yield from rows
        return
    missing = set(entries)
    number = -1
    for number, row in enumerate(rows):
        if number in missing:
            missing.remove(number)
            yield row
            if not missing:
                return
    if number >= 0:
        raise InputError(
            f"prompts.entries names rows {sorted(missing)} that {source} does not have; expected numbers from 0 "
            f"to {number}"
        )


def _check(config: PromptsConfig, report: ParseReport, num_prompts: int, failure_budget: float) -> None:
    source = ", ".join(config.sources.values()) or config.source
    if report.rows_read == 0:
        raise InputError(f"prompts source {source} is empty; expected at least one prompt")
    num_malformed = len(report.malformed)
    if num_prompts > 0 and num_malformed <= failure_budget * report.rows_read:
        return
    share = num_malformed / report.rows_read
    why = f"more than runtime.failure_budget = {failure_budget:.1%}" if num_prompts else "leaving none"
    raise InputError(
        f"{num_malformed} of {report.rows_read} rows of {source} are malformed ({share:.1%}), {why}. "
        f"Mend these rows:\n  {first_problems(report.malformed)}"
    )


def split_prompts(prompts: Iterable[Prompt], fraction: float, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """Return `(train, held_out)`; content decides, so that variants are on one side. `fraction` is an expectation."""
    train: list[Prompt] = []
    held_out: list[Prompt] = []
    for prompt in prompts:
        (held_out if unit_interval(seed, without_variant(prompt.id)) < fraction else train).append(prompt)
    return train, held_out
