"""The report of a conversion: counts, what could not be mapped, and its summary for a terminal."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from stillhouse.types import JsonObject

PROMPTS: Final = "prompts.jsonl"
TRAJECTORIES: Final = "trajectories.jsonl"
CONFIG: Final = "config.yaml"
UNMAPPED: Final = "unmapped.jsonl"
_EXAMPLES: Final = 3


class Example(NamedTuple):
    """One unmapped thing and its place."""

    place: str
    key: str | None
    value: Any


@dataclass(slots=True)
class Reason:
    """Why some things have no place here: how many, and the first of them."""

    leaves_out: bool
    """Whether it costs whole rows."""
    count: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass(slots=True)
class ConversionReport:
    """The account of a conversion: of each row something was written, or it is among `rows_left_out`."""

    form: str
    """Name of the format read."""
    source: str
    files: int = 0
    rows: int = 0
    rows_left_out: int = 0
    """Rows nothing was made of: malformed, failed or empty; each is among `unmapped`."""
    prompts: int = 0
    """Distinct prompts written."""
    repeated_prompts: int = 0
    """Conversations whose prompt had been written before."""
    trajectories: int = 0
    failed: int = 0
    """Rollouts that failed: left out, or among `trajectories` where they were asked for."""
    has_config: bool = False
    unmapped: dict[str, Reason] = field(default_factory=dict)
    """By reason, in the order met."""

    @property
    def num_unmapped(self) -> int:
        """Things that have no place here; `unmapped.jsonl` holds every one."""
        return sum(reason.count for reason in self.unmapped.values())

    def note(self, reason: str, example: Example, *, leaves_out: bool) -> None:
        """Counts one unmapped thing."""
        entry = self.unmapped.setdefault(reason, Reason(leaves_out))
        entry.count += 1
        if len(entry.examples) < _EXAMPLES:
            entry.examples.append(example)

    def as_json(self) -> JsonObject:
        """The figures, for the file that says what the folder is."""
        names = (
            "form",
            "source",
            "files",
            "rows",
            "rows_left_out",
            "prompts",
            "repeated_prompts",
            "trajectories",
            "failed",
        )
        return {name: getattr(self, name) for name in names} | {
            "unmapped": {reason: entry.count for reason, entry in self.unmapped.items()}
        }


_SHOWN_REASONS: Final = 12
_EXAMPLE_LINES: Final = 3


def summary_lines(account: ConversionReport, output: Path, width: int) -> Iterator[str]:
    """What was read, written and left; then what a config needs to use it.

    Args:
        account: of the conversion.
        output: the folder written.
        width: of the terminal in columns; examples that are long are wrapped, then cut.
    """
    yield f"read     {account.source} as {account.form}{_rows(account)}"
    yield from (f"wrote    {output / name}: {told}" for name, told in _written(account))
    if account.num_unmapped:
        yield from _unmapped(account, output, width)
    if account.trajectories and not account.has_config:
        yield ""
        yield "In a config, to make a dataset of it and sample nothing:"
        yield f"  prompts.source: {output / PROMPTS}"
        yield f"  rollouts.trajectories_file: {output / TRAJECTORIES}"


def _rows(account: ConversionReport) -> str:
    if not account.rows:
        return ""
    files = f" in {counted(account.files, 'file')}" if account.files > 1 else ""
    left_out = f", {account.rows_left_out} left out" if account.rows_left_out else ""
    return f": {counted(account.rows, 'row')}{files}{left_out}"


def _written(account: ConversionReport) -> Iterator[tuple[str, str]]:
    if account.prompts:
        repeated = f", {account.repeated_prompts} more conversations of them" if account.repeated_prompts else ""
        yield PROMPTS, counted(account.prompts, "prompt") + repeated
    if account.trajectories:
        yield TRAJECTORIES, counted(account.trajectories, "trajectory", "trajectories")
    if account.has_config:
        yield CONFIG, "loads as it is"
    if account.num_unmapped:
        yield UNMAPPED, "what has no place in them"


def _unmapped(account: ConversionReport, output: Path, width: int) -> Iterator[str]:
    yield ""
    yield f"{counted(account.num_unmapped, 'thing')} not mapped, by {counted(len(account.unmapped), 'reason')}:"
    by_count = sorted(account.unmapped.items(), key=lambda item: (not item[1].leaves_out, -item[1].count))
    digits = max(len(str(entry.count)) for _, entry in by_count)
    for reason, entry in by_count[:_SHOWN_REASONS]:
        count = f"  {entry.count:>{digits}}  "
        yield from textwrap.wrap(reason, max(width, 40), initial_indent=count, subsequent_indent=" " * len(count))
        for example in entry.examples:
            yield from _example(example, " " * (digits + 6), width)
    if len(by_count) > _SHOWN_REASONS:
        yield f"  and {counted(len(by_count) - _SHOWN_REASONS, 'reason')} more, in {output / UNMAPPED}"


def _example(example: Example, indent: str, width: int) -> list[str]:
    value = example.value if isinstance(example.value, str) or example.value is None else repr(example.value)
    told = " = ".join(part for part in (example.key, value) if part)
    return textwrap.wrap(
        f"{example.place}: {told}" if told else example.place,
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        max_lines=_EXAMPLE_LINES,
        placeholder=" ...",
        # A path stays one word, to be copied.
        break_long_words=False,
        break_on_hyphens=False,
    )


def counted(number: int, thing: str, things: str | None = None) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"
