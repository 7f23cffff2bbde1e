"""A prompts source as distinct prompts, their metadata, a report on every other row, and the held-out split."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from stillhouse.config import PromptsConfig
from stillhouse.errors import InputError
from stillhouse.prompts.row import RowProblem, parse_row
from stillhouse.prompts.sources import SourceRow, read_source
from stillhouse.store.fingerprint import unit_interval
from stillhouse.types import Prompt, PromptMetadata

_SHOWN_PROBLEMS: Final = 5


@dataclass(slots=True)
class ParseReport:
    """Counts of rows: `rows_read == prompts + duplicates + len(malformed)`."""

    rows_read: int = 0
    malformed: list[str] = field(default_factory=list)
    """One entry for each row left out: place, what was seen, what was expected."""
    duplicates: int = 0
    """Rows whose prompt had been read before."""
    conflicts: list[str] = field(default_factory=list)
    """Duplicates whose metadata differs from that of the first row, which stands."""


@dataclass(frozen=True, slots=True)
class ParsedPrompts:
    """Distinct prompts in the order of the source."""

    prompts: list[Prompt]
    metadata: dict[str, PromptMetadata]
    """By prompt id; one entry for each prompt."""
    report: ParseReport


def parse_prompts(config: PromptsConfig) -> ParsedPrompts:
    """The distinct prompts of a source. Reading ends at `config.max_prompts`.

    Raises:
        ConfigError: the source's format is unknown.
        InputError: the source is missing or empty, lacks a row of `config.entries`, has no usable row, or has a
            larger share of malformed rows than `config.failure_budget`.
    """
    report = ParseReport()
    prompts: list[Prompt] = []
    metadata: dict[str, PromptMetadata] = {}
    first_places: dict[str, str] = {}
    for row in _selected(config):
        report.rows_read += 1
        problem = row.problem
        if problem is None:
            try:
                prompt, prompt_metadata = parse_row(row.value, config)
            except RowProblem as error:
                problem = str(error)
        if problem is not None:
            report.malformed.append(f"{row.place}: {problem}")
            continue
        if prompt.id in metadata:
            report.duplicates += 1
            if prompt_metadata != metadata[prompt.id]:
                report.conflicts.append(
                    f"{row.place}: same prompt as {first_places[prompt.id]} with other metadata; the first stands"
                )
            continue
        prompts.append(prompt)
        metadata[prompt.id] = prompt_metadata
        first_places[prompt.id] = row.place
        if len(prompts) == config.max_prompts:
            break
    _check(config, report, len(prompts))
    return ParsedPrompts(prompts, metadata, report)


def _selected(config: PromptsConfig) -> Iterator[SourceRow]:
    """Rows of the source, or those whose numbers are in `config.entries`."""
    rows = read_source(config)
    if not config.entries:
        yield from rows
        return
    missing = set(config.entries)
    num_rows = 0
    for number, row in enumerate(rows):
        num_rows = number + 1
        if number in missing:
            missing.remove(number)
            yield row
            if not missing:
                return
    if num_rows == 0:
        return
    raise InputError(
        f"prompts.entries names rows {sorted(missing)} that {config.source} does not have; expected numbers from 0 to "
        f"{num_rows - 1}"
    )


def _check(config: PromptsConfig, report: ParseReport, num_prompts: int) -> None:
    if report.rows_read == 0:
        raise InputError(f"prompts source {config.source} is empty; expected at least one prompt")
    num_malformed = len(report.malformed)
    if num_prompts > 0 and num_malformed <= config.failure_budget * report.rows_read:
        return
    lines = "\n  ".join(report.malformed[:_SHOWN_PROBLEMS])
    more = f"\n  and {num_malformed - _SHOWN_PROBLEMS} more" if num_malformed > _SHOWN_PROBLEMS else ""
    share = num_malformed / report.rows_read
    why = f"more than prompts.failure_budget = {config.failure_budget:.1%}" if num_prompts else "leaving none"
    raise InputError(
        f"{num_malformed} of {report.rows_read} rows of {config.source} are malformed ({share:.1%}), {why}. "
        f"Mend these rows:\n  {lines}{more}"
    )


def split_prompts(prompts: Iterable[Prompt], fraction: float, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """`(train, held_out)` in the order given; each prompt's content decides, `fraction` is held out in expectation."""
    train: list[Prompt] = []
    held_out: list[Prompt] = []
    for prompt in prompts:
        (held_out if unit_interval(seed, prompt.id) < fraction else train).append(prompt)
    return train, held_out
