"""Pictures of the course of a training: its metrics by optimizer step."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stillhouse.report.svg import INK, PAPER, drawing, panels, stage_ink, to_svg
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVES_IN = 3.3
_SMOOTH_FROM = 40
"""Curves with fewer points are drawn as they are."""


class Point(NamedTuple):
    """One value of a curve."""

    step: int
    value: float


def series(rows: Sequence[JsonObject], metric: str) -> list[Point]:
    """The finite values of one metric by step; rows without it are passed over."""
    points = [Point(int(row["step"]), float(row[metric])) for row in rows if row.get(metric) is not None]
    return [point for point in points if math.isfinite(point.value)]


def sft_plot(rows: Sequence[JsonObject]) -> str | None:
    """Cross-entropy by step, of training and validation; below it the accuracy of sampled answers, if measured.

    It is drawn whatever was trained on, so that training and validation are of one kind; trainings whose loss is the
    cross-entropy may log it as `loss` alone.
    """
    loss = series(rows, "sft/nll") or series(rows, "sft/loss")
    validation = series(rows, "sft/validation_nll") or series(rows, "sft/validation_loss")
    accuracy = series(rows, "sft/generation_accuracy")
    if not loss and not validation:
        return None
    with drawing():
        figure, axes = panels(_CURVES_IN, 2 if accuracy else 1)
        axis = axes[0]
        ink = stage_ink("sft")
        axis.set_title("Loss")
        if validation:
            _marked(axis, validation)
            _corner(axis, f"validation {validation[-1].value:.3f}", INK, line=1 if loss else 0)
        if loss:
            _curve(axis, loss, ink)
            _corner(axis, f"training {_smooth(loss)[-1].value:.3f}", ink, line=0)
        axis.grid(axis="y")
        axis.set_ylim(bottom=0)
        if accuracy:
            _marked(axes[1], accuracy)
            axes[1].set_title("Accuracy of sampled answers to validation prompts")
            _corner(axes[1], f"{accuracy[-1].value:.2f}", INK, line=0)
            axes[1].set_ylim(0, 1)
        _steps(axes[-1])
        return to_svg(figure, "sft", "SFT loss by optimizer step")


def on_policy_plot(rows: Sequence[JsonObject]) -> str | None:
    """teacher_kl and reward by step, one above the other."""
    curves = [
        ("teacher_kl, nats per token", series(rows, "on_policy/teacher_kl"), "{:.3f}"),
        ("Reward, share of right answers", series(rows, "on_policy/reward"), "{:.2f}"),
    ]
    curves = [curve for curve in curves if curve[1]]
    if not curves:
        return None
    with drawing():
        figure, axes = panels(_CURVES_IN, len(curves))
        for axis, (title, points, form) in zip(axes, curves, strict=True):
            _curve(axis, points, stage_ink("on_policy"))
            axis.set_title(title)
            _corner(axis, form.format(_smooth(points)[-1].value), stage_ink("on_policy"), line=0)
            axis.grid(axis="y")
            axis.locator_params(axis="y", nbins=4)
            lowest, highest = (extreme(point.value for point in points) for extreme in (min, max))
            # A reward is a share: on the whole scale a small gain looks small.
            is_share = title.startswith("Reward") and lowest >= 0 and highest <= 1
            axis.set_ylim(min(0.0, lowest), 1.0 if is_share else None)
        _steps(axes[-1])
        return to_svg(figure, "on-policy", "On-policy distillation: teacher_kl and reward by optimizer step")


def _curve(axis: "Axes", points: Sequence[Point], ink: str) -> None:
    if not points:
        return
    smooth = _smooth(points)
    if len(points) >= _SMOOTH_FROM:
        axis.plot([p.step for p in points], [p.value for p in points], color=ink, linewidth=0.9, alpha=0.3)
    axis.plot([p.step for p in smooth], [p.value for p in smooth], color=ink, linewidth=1.8)
    if len(points) == 1:
        axis.plot([points[0].step], [points[0].value], "o", color=ink, markersize=5)


def _marked(axis: "Axes", points: Sequence[Point]) -> None:
    """Few measurements, each a dot."""
    steps, values = zip(*points, strict=True)
    axis.plot(steps, values, "o-", color=INK, markersize=4.5, linewidth=1, markeredgecolor=PAPER)


def _smooth(points: Sequence[Point]) -> list[Point]:
    """A centred moving mean over a twentieth of the curve; short curves stay as they are."""
    if len(points) < _SMOOTH_FROM:
        return list(points)
    reach = len(points) // 40
    smooth = []
    for place, point in enumerate(points):
        window = points[max(0, place - reach) : place + reach + 1]
        smooth.append(Point(point.step, sum(p.value for p in window) / len(window)))
    return smooth


def _corner(axis: "Axes", text: str, ink: str, *, line: int) -> None:
    """The last value of a curve, in the curve's colour, above the panel on the right; `line` 1 is the line below."""
    note = axis.annotate(
        text,
        (1.0, 1.0),
        xycoords="axes fraction",
        xytext=(0, 6 - 15 * line),
        textcoords="offset points",
        ha="right",
        color=ink,
        fontweight="bold",
    )
    note.set_in_layout(False)


def _steps(axis: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axis.grid(axis="y")
    axis.set_xlabel("Optimizer step")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
