"""What a conversion did, in lines for a terminal."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stillhouse.interop.conversion_report import Converted, Example
from stillhouse.interop.output import CONFIG, PROMPTS, TRAJECTORIES, UNMAPPED

_SHOWN_REASONS: Final = 12
_EXAMPLE_LINES: Final = 3


def summary_lines(account: Converted, output: Path, width: int) -> Iterator[str]:
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


def _rows(account: Converted) -> str:
    if not account.rows:
        return ""
    files = f" in {counted(account.files, 'file')}" if account.files > 1 else ""
    left_out = f", {account.rows_left_out} left out" if account.rows_left_out else ""
    return f": {counted(account.rows, 'row')}{files}{left_out}"


def _written(account: Converted) -> Iterator[tuple[str, str]]:
    if account.prompts:
        repeated = f", {account.repeated_prompts} more conversations of them" if account.repeated_prompts else ""
        yield PROMPTS, counted(account.prompts, "prompt") + repeated
    if account.trajectories:
        yield TRAJECTORIES, counted(account.trajectories, "trajectory", "trajectories")
    if account.has_config:
        yield CONFIG, "loads as it is"
    if account.num_unmapped:
        yield UNMAPPED, "what has no place in them"


def _unmapped(account: Converted, output: Path, width: int) -> Iterator[str]:
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
