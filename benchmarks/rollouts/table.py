"""The scores as a table of ratios and as JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from benchmarks.rollouts.scenarios import SCENARIOS
from benchmarks.rollouts.trial import Score

Scores = Mapping[str, Mapping[str, Sequence[Score]]]
"""By scenario and side, one a round."""
_MAX_LOST: Final = 0.01
"""Share of the rows above which a client gets no figure of speed."""
_HEADINGS: Final = (
    "side",
    "share of optimum",
    "429 per row",
    "billed / useful",
    "lost",
    "doubled",
    "swapped",
    "billed again (in flight at kills)",
    "CPU s per 1,000",
    "peak RSS MB",
    "ended",
)


def as_markdown(scores: Scores, optima: Mapping[str, float], skipped: Mapping[str, str]) -> str:
    """One table a scenario: medians over the rounds, and the worst round for what must be 0.

    A client that lost more than one row in a hundred has `lost` in place of figures for a row.
    """
    parts = ["# Rollouts: the same scenarios for every client"]
    for name, sides in scores.items():
        scenario = SCENARIOS[name]
        rows = scenario.num_rows
        parts.append(f"\n## {name}: {scenario.title}\n\nAt best {optima[name]:.2f} s for {rows:,} rows.\n")
        parts.append(f"| {' | '.join(_HEADINGS)} |")
        parts.append("|---" * len(_HEADINGS) + "|")
        parts += [f"| {' | '.join(_cells(side, rounds, rows))} |" for side, rounds in sides.items()]
    if skipped:
        parts.append("\n## Left out\n")
        parts += [f"- {side}: {why}" for side, why in skipped.items()]
    return "\n".join(parts) + "\n"


def _cells(side: str, rounds: Sequence[Score], num_rows: int) -> list[str]:
    # Rows that are missing took no time and no CPU: a figure for each of the others would flatter.
    has_lost = any(score.num_lost > _MAX_LOST * num_rows for score in rounds)

    def median(name: str) -> float:
        return statistics.median(getattr(score, name) for score in rounds)

    def for_each_row(name: str, form: str) -> str:
        return "lost" if has_lost else format(median(name), form)

    def worst(name: str) -> int:
        return int(max(getattr(score, name) for score in rounds))

    again = "-"
    if rounds[0].num_rebilled is not None:
        again = f"{worst('num_rebilled')} ({max(score.in_flight_at_kills or 0 for score in rounds)})"
    ends = sorted(
        {score.ended if score.exit_code == 0 else f"{score.ended}, exit {score.exit_code}" for score in rounds}
    )
    return [
        side,
        for_each_row("share_of_optimum", ".2f"),
        for_each_row("refused_per_row", ".3f"),
        f"{median('billed_over_useful'):.3f}",
        str(worst("num_lost")),
        str(worst("num_doubled")),
        str(worst("num_swapped")),
        again,
        for_each_row("cpu_s_per_1000", ".2f"),
        f"{median('peak_rss_mb'):.0f}",
        "; ".join(ends),
    ]


def as_json(scores: Scores, optima: Mapping[str, float], skipped: Mapping[str, str]) -> dict[str, Any]:
    """Every figure of every round."""
    return {
        "optimum_s": dict(optima),
        "skipped": dict(skipped),
        "scores": {
            name: {side: [asdict(score) for score in rounds] for side, rounds in sides.items()}
            for name, sides in scores.items()
        },
    }
