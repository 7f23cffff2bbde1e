"""The report of a conversion: counts, its summary for a terminal, and the page on the keys of a config."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from stillhouse.config import SamePrompt
from stillhouse.interop.mapping import MappedKey
from stillhouse.interop.source_record import Unmapped
from stillhouse.types import JsonObject

PROMPTS: Final = "prompts.jsonl"
TRAJECTORIES: Final = "trajectories.jsonl"
CONFIG: Final = "config.yaml"
KEYS: Final = "conversion.md"
UNMAPPED: Final = "unmapped.jsonl"
_EXAMPLES: Final = 3
_SHOWN_REASONS: Final = 12
_EXAMPLE_LINES: Final = 3
_SHOWN_CHARACTERS: Final = 80


@dataclass(slots=True)
class UnmappedReason:
    """Count and first examples of what is unmapped for one reason."""

    leaves_out: bool
    """True where whole rows are left out."""
    count: int = 0
    examples: list[tuple[str, Unmapped]] = field(default_factory=list)
    """With their places."""


@dataclass(slots=True)
class ConversionReport:
    """Counts of a conversion. Every row is written in some form or counted in `rows_left_out`."""

    form: str
    source: str
    same_prompt: SamePrompt = "first"
    files: int = 0
    rows: int = 0
    rows_left_out: int = 0
    """Malformed, failed or empty rows; each is among `unmapped`."""
    prompts: int = 0
    """Distinct prompts written."""
    repeated_prompts: int = 0
    """Conversations whose prompt was written before."""
    conflicting_prompts: int = 0
    """Conversations whose prompt an earlier one had with other metadata; each is in another count as well."""
    trajectories: int = 0
    failed: int = 0
    """Failed rollouts: left out, or among `trajectories` on request."""
    has_config: bool = False
    key_counts: str = ""
    """Counts of the keys of a config by what became of them."""
    unmapped: dict[str, UnmappedReason] = field(default_factory=dict)
    """By reason, in order of appearance."""

    @property
    def num_unmapped(self) -> int:
        """Return the number of unmapped values, all of which are in `unmapped.jsonl`."""
        return sum(reason.count for reason in self.unmapped.values())

    @property
    def needs_same_prompt(self) -> bool:
        """Return whether a config has to say that rows with one prompt are merged or kept apart."""
        return self.conflicting_prompts > 0 and self.same_prompt != "first"

    def add_unmapped(self, place: str, unmapped: Unmapped, *, leaves_out: bool) -> None:
        entry = self.unmapped.setdefault(unmapped.reason, UnmappedReason(leaves_out))
        entry.count += 1
        if len(entry.examples) < _EXAMPLES:
            entry.examples.append((place, unmapped))

    def as_json(self) -> JsonObject:
        counts = asdict(self) | {"unmapped": {reason: entry.count for reason, entry in self.unmapped.items()}}
        del counts["has_config"], counts["key_counts"]
        return counts


def summary_lines(report: ConversionReport, output: Path, width: int) -> Iterator[str]:
    """Yield lines on what was read, written and unmapped, and how a config can use it.

    Long examples are wrapped to `width` columns, then cut.
    """
    rows = ""
    if report.rows:
        files = f" in {counted(report.files, 'file')}" if report.files > 1 else ""
        left_out = f", {report.rows_left_out} left out" if report.rows_left_out else ""
        rows = f": {counted(report.rows, 'row')}{files}{left_out}"
    yield f"read     {report.source} as {report.form}{rows}"
    yield from (f"wrote    {output / name}: {content}" for name, content in _written(report))
    if report.num_unmapped:
        yield from _unmapped(report, output, width)
    if report.has_config or not (report.trajectories or report.needs_same_prompt):
        return
    yield ""
    yield "In a config, to make a dataset of it and sample nothing:" if report.trajectories else "In a config:"
    yield f"  prompts.source: {output / PROMPTS}"
    if report.needs_same_prompt:
        yield f"  prompts.same_prompt: {report.same_prompt}"
    if report.trajectories:
        yield f"  rollouts.trajectories_file: {output / TRAJECTORIES}"
        yield "Or without one:"
        yield f"  stillhouse generate {output / PROMPTS} -o train.jsonl \\"
        if report.needs_same_prompt:
            yield f"    --set prompts.same_prompt={report.same_prompt} \\"
        yield f"    --set rollouts.trajectories_file={output / TRAJECTORIES}"


def _written(report: ConversionReport) -> Iterator[tuple[str, str]]:
    if report.prompts:
        repeated = f", {report.repeated_prompts} more conversations of them" if report.repeated_prompts else ""
        outcome = {"first": "the first stands", "merge": "merged", "keep": "kept apart"}[report.same_prompt]
        number = report.conflicting_prompts
        conflicting = f", {number:,} with an earlier prompt and other metadata ({outcome})" if number else ""
        yield PROMPTS, counted(report.prompts, "prompt") + repeated + conflicting
    if report.trajectories:
        yield TRAJECTORIES, counted(report.trajectories, "trajectory", "trajectories")
    if report.has_config:
        yield CONFIG, "loads as it is"
        yield KEYS, report.key_counts
    if report.num_unmapped:
        yield UNMAPPED, "what has no place in them"


def _unmapped(report: ConversionReport, output: Path, width: int) -> Iterator[str]:
    yield ""
    yield f"{counted(report.num_unmapped, 'thing')} not mapped, by {counted(len(report.unmapped), 'reason')}:"
    by_count = sorted(report.unmapped.items(), key=lambda item: (not item[1].leaves_out, -item[1].count))
    digits = max(len(str(entry.count)) for _, entry in by_count)
    for reason, entry in by_count[:_SHOWN_REASONS]:
        count = f"  {entry.count:>{digits}}  "
        yield from textwrap.wrap(reason, max(width, 40), initial_indent=count, subsequent_indent=" " * len(count))
        for place, example in entry.examples:
            shown = "" if report.has_config and place == report.source else place
            yield from _example(shown, example, " " * (digits + 6), width)
    if len(by_count) > _SHOWN_REASONS:
        yield f"  and {counted(len(by_count) - _SHOWN_REASONS, 'reason')} more, in {output / UNMAPPED}"


def _example(place: str, example: Unmapped, indent: str, width: int) -> list[str]:
    value = example.value if isinstance(example.value, str) or example.value is None else repr(example.value)
    text = " = ".join(part for part in (example.key, value) if part)
    return textwrap.wrap(
        ": ".join(part for part in (place, text) if part),
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
    """Return `1 row`, `2,000 rows`."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def key_report(source: str, mapped: Sequence[MappedKey], unmapped: Sequence[Unmapped]) -> tuple[str, str]:
    """Return the page, in Markdown, and the lengths of its lists, for a terminal."""
    same, added = (
        [f"- `{key.key}`: `{key.target}` = {_shown(key.value)}" for key in mapped if key.is_default is is_default]
        for is_default in (False, True)
    )
    approximated, rest = (
        [f"- `{key.key}` = {_shown(key.value)}: {key.reason}" for key in unmapped if key.is_approximated is is_similar]
        for is_similar in (True, False)
    )
    lines = [f"# {source}", ""]
    for title, meaning, entries in (
        ("Same", "The config has the same value.", same),
        ("Same by an added key", "The file leaves the key out; its default there is written out.", added),
        ("Approximated", "Something similar happens.", approximated),
        ("No counterpart", "Nothing here acts on it.", rest),
    ):
        lines += [f"## {title}", "", meaning, "", *entries, ""]
    counts = (
        f"keys: {len(same)} same, {len(added)} same by an added key, {len(approximated)} approximated, "
        f"{len(rest)} without counterpart"
    )
    return "\n".join(lines), counts


def _shown(value: Any) -> str:
    text = repr(value)
    return f"`{text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + ' ...'}`"
