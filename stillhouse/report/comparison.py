"""Rows of a comparison for the report's tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

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
    named = [
        (_LABELS[row["metric"]], row) for row in overall if row["metric"] in differing or row["metric"] == "accuracy"
    ]
    order = list(_LABELS.values())
    return _lines(sorted(named, key=lambda item: order.index(item[0])))


def tag_lines(rows: Sequence[JsonObject]) -> list[ComparisonRow]:
    """Lines of accuracy, or of rewards if nothing is verified, by tag; empty for fewer than two tags."""
    tagged = [row for row in rows if row["tag"] is not None]
    metric = "accuracy" if any(row["metric"] == "accuracy" for row in tagged) else "reward"
    named = [(row["tag"], row) for row in tagged if row["metric"] == metric]
    if len({tag for tag, _ in named}) < 2:
        return []
    return _lines(sorted(named, key=lambda item: item[0]))


def _lines(named: Sequence[tuple[str, JsonObject]]) -> list[ComparisonRow]:
    previous = ["", *(name for name, _ in named)]
    return [_line("" if name == last else name, row) for last, (name, row) in zip(previous, named, strict=False)]


def _line(group: str, row: JsonObject) -> ComparisonRow:
    is_share = row["metric"] in _SHARES
    places = 2 if row["metric"] == "reward" else 1
    scale = 100.0 if is_share else 1.0

    def shown(value: float) -> str:
        return percent(value) if is_share else decimal(value, places)

    def signed(value: Any) -> str:
        rounded = round(scale * value, places)
        # A minus sign as wide as the plus; zero has no sign.
        return f"{rounded:+.{places}f}".replace("-", "\u2212") if rounded else f"{0.0:.{places}f}"

    return ComparisonRow(
        group=group,
        model=row["model"],
        value=shown(row["value"]),
        reference=shown(row["reference"]),
        difference=signed(row["difference"]),
        interval=f"{signed(row['low'])} to {signed(row['high'])}",
        p="< 0.001" if row["p"] < 0.001 else f"{row['p']:.3f}",
        num_prompts=row["num_prompts"],
        sign=_sign(row),
    )


def _sign(row: JsonObject) -> str:
    if row["low"] <= 0.0 <= row["high"]:
        return ""
    return "right" if row["gain"] > 0.0 else "wrong"
