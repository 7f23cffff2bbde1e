"""How every benchmark here compares: the sides take turns, and what is reported are ratios.

A machine that others use slows both sides of a round alike, so a ratio of one round holds where seconds do not; the
spread over rounds tells how far to trust it.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    low: float
    high: float
    num_rounds: int

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}..{self.high:.3g}, {self.num_rounds} rounds)"


def spread(values: Sequence[float]) -> Spread:
    """Median and range of a figure measured once a round."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Median and range of the rounds' own ratios."""
    return spread([above / below for above, below in zip(numerators, denominators, strict=True)])


def argument_parser(docstring: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have; the module's docstring is its help."""
    parser = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser


def publish(lines: Sequence[str], figures: Mapping[str, Any], path: Path | None) -> None:
    """Prints the lines; writes the figures as JSON where a path is given."""
    print("\n".join(lines))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
