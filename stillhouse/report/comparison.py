"""Lines of a comparison as the report's tables show them."""

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
class Line:
    """One model's metric beside the reference's, in words."""

    group: str
    """The metric's or the tag's name; empty where it is that of the line above."""
    model: str
    value: str
    reference: str
    difference: str
    interval: str
    p: str
    num_prompts: int
    sign: str
    """`right` or `wrong` where the interval leaves no doubt that the model is better or worse; else empty."""


def overall_lines(rows: Sequence[JsonObject]) -> list[Line]:
    """Lines over all prompts, metric by metric; a metric on which no prompt tells any model apart is left out."""
    overall = [row for row in rows if row["tag"] is None]
    telling = {row["metric"] for row in overall if (row["low"], row["high"]) != (0.0, 0.0)}
    named = [
        (_LABELS[row["metric"]], row) for row in overall if row["metric"] in telling or row["metric"] == "accuracy"
    ]
    order = list(_LABELS.values())
    return _lines(sorted(named, key=lambda item: order.index(item[0])))


def tag_lines(rows: Sequence[JsonObject]) -> list[Line]:
    """Lines of accuracy, or of rewards where nothing is verified, tag by tag; empty for fewer than two tags."""
    tagged = [row for row in rows if row["tag"] is not None]
    metric = "accuracy" if any(row["metric"] == "accuracy" for row in tagged) else "reward"
    named = [(row["tag"], row) for row in tagged if row["metric"] == metric]
    if len({tag for tag, _ in named}) < 2:
        return []
    return _lines(sorted(named, key=lambda item: item[0]))


def _lines(named: Sequence[tuple[str, JsonObject]]) -> list[Line]:
    before = ["", *(name for name, _ in named)]
    return [_line("" if name == last else name, row) for last, (name, row) in zip(before, named, strict=False)]


def _line(group: str, row: JsonObject) -> Line:
    is_share = row["metric"] in _SHARES
    places = 2 if row["metric"] == "reward" else 1
    scale = 100.0 if is_share else 1.0

    def shown(value: float) -> str:
        return percent(value) if is_share else decimal(value, places)

    def signed(value: Any) -> str:
        rounded = round(scale * value, places)
        # A minus as wide as the plus; zero has neither.
        return f"{rounded:+.{places}f}".replace("-", "\u2212") if rounded else f"{0.0:.{places}f}"

    return Line(
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
