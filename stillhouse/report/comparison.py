"""Rows of a comparison for the report's tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from stillhouse.report.format import decimal, percent
from stillhouse.types import JsonObject

_LABELS: Final = {
    "accuracy": "Accuracy",
    "reward": "Reward",
    "mean_completion_tokens": "Tokens",
    "truncated_share": "Truncated",
    "valid_tool_call_share": "Valid calls",
}
_SHARES: Final = frozenset({"accuracy", "truncated_share", "valid_tool_call_share"})


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """Metric of one model and of the reference, as text."""

    group: str
    """Name of the metric or tag; empty if equal to the line above."""
    model: str
    value: str
    reference: str
    difference: str
    interval: str
    p: str
    num_prompts: int
    sign: str
    """`right` or `wrong` if the interval shows that the model is better or worse; else empty."""


def overall_lines(rows: Sequence[JsonObject]) -> list[ComparisonRow]:
    """Lines over all prompts by metric, without metrics on which the models are equal for every prompt."""
    overall = [row for row in rows if row["tag"] is None]
    differing = {row["metric"] for row in overall if (row["low"], row["high"]) != (0.0, 0.0)}
    return _lines(
        (label, row)
        for metric, label in _LABELS.items()
        for row in overall
        if row["metric"] == metric and metric in {*differing, "accuracy"}
    )


def tag_lines(rows: Sequence[JsonObject]) -> list[ComparisonRow]:
    """Lines of accuracy, or of rewards if nothing is verified, by tag; empty for fewer than two tags."""
    tagged = sorted((row for row in rows if row["tag"] is not None), key=lambda row: row["tag"])
    metric = "accuracy" if any(row["metric"] == "accuracy" for row in tagged) else "reward"
    named = [(row["tag"], row) for row in tagged if row["metric"] == metric]
    return _lines(named) if len({tag for tag, _ in named}) > 1 else []


def _lines(named: Iterable[tuple[str, JsonObject]]) -> list[ComparisonRow]:
    return [
        _line(group if place == 0 else "", row)
        for group, rows in groupby(named, key=itemgetter(0))
        for place, (_, row) in enumerate(rows)
    ]


def _line(group: str, row: JsonObject) -> ComparisonRow:
    is_share = row["metric"] in _SHARES
    places = 2 if row["metric"] == "reward" else 1
    scale = 100.0 if is_share else 1.0
    value, reference = (
        percent(row[name]) if is_share else decimal(row[name], places) for name in ("value", "reference")
    )

    def signed(name: str) -> str:
        rounded = round(scale * row[name], places)
        # A minus sign as wide as the plus; zero has no sign.
        return f"{rounded:+.{places}f}".replace("-", "\u2212") if rounded else f"{0.0:.{places}f}"

    sign = "right" if row["gain"] > 0.0 else "wrong"
    return ComparisonRow(
        group=group,
        model=row["model"],
        value=value,
        reference=reference,
        difference=signed("difference"),
        interval=f"{signed('low')} to {signed('high')}",
        p="< 0.001" if row["p"] < 0.001 else f"{row['p']:.3f}",
        num_prompts=row["num_prompts"],
        sign="" if row["low"] <= 0.0 <= row["high"] else sign,
    )
