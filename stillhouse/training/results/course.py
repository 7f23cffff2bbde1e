"""The course of a training in a few figures: each metric's first, best and last value."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from stillhouse.types import JsonObject

_FALLING: Final = ("loss", "nll", "kl", "bits_per_byte", "perplexity")
_RISING: Final = ("accuracy", "reward")
_LEFT_OUT: Final = ("_s", "_gib", "mfu", "learning_rate", "padding_share", "supervised_share", "epoch")
"""Ends of the names of what tells of the machine or of the config."""


class Course(NamedTuple):
    """One metric over the training."""

    name: str
    first: float
    best: float | None
    """Of what was trained, not of what training started from; None where neither high nor low is good."""
    best_step: int | None
    last: float


def courses(rows: Sequence[JsonObject]) -> list[Course]:
    """Of each metric but those of the machine, in the order in which they came.

    Args:
        rows: of `metrics.jsonl`, `{"step": n, "metrics": {name: value}}` by step.
    """
    values: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        metrics: Mapping[str, float] = row["metrics"]
        for name, value in metrics.items():
            values.setdefault(name, []).append((row["step"], value))
    return [_course(name, points) for name, points in values.items() if not name.endswith(_LEFT_OUT)]


def _course(name: str, points: list[tuple[int, float]]) -> Course:
    best_step, best = None, None
    trained = [point for point in points if point[0] > 0] or points
    if name.endswith(_FALLING):
        best_step, best = min(trained, key=lambda point: point[1])
    elif name.endswith(_RISING):
        best_step, best = max(trained, key=lambda point: point[1])
    return Course(name, points[0][1], best, best_step, points[-1][1])
