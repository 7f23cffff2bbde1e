"""Plots of a report: accuracy and teacher_kl of the models, the dataset's funnel, metrics by optimizer step."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stillhouse.report.svg import INK, MUTED, PAPER, RULE, WIDTH_IN, drawing, panels, stage_ink, to_svg
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGE_LABELS = {
    "base": "Base student",
    "champion": "Champion",
    "sft": "After SFT",
    "self_training": "After self-training",
    "on_policy": "After on-policy",
    "teacher": "Teacher",
}
_ROW_IN = 0.42
_CURVES_IN = 3.3
_SMOOTH_FROM = 40
"""Curves with fewer points are not smoothed."""
_BOLD: Mapping[str, Any] = {"textcoords": "offset points", "color": INK, "fontweight": "bold"}
"""How figures are written beside what they belong to."""
_DIGIT_POINTS = 6.8


def stage_label(name: str) -> str:
    return STAGE_LABELS.get(name, name.replace("_", " "))


def accuracy_plot(evaluations: Sequence[JsonObject]) -> str | None:
    """Return the accuracy of each model with its confidence interval, on a scale from 0 to 100 %."""
    rows = [facts for facts in evaluations if facts.get("accuracy") is not None]
    if not rows:
        return None
    with drawing():
        figure, (axis,) = panels(0.55 + _ROW_IN * len(rows), used_width=0.86)
        for row, facts in enumerate(rows):
            ink, accuracy = stage_ink(facts["name"]), 100 * facts["accuracy"]
            low, high = (100 * (facts.get(key) or 0.0) for key in ("accuracy_low", "accuracy_high"))
            if facts.get("accuracy_low") is not None and facts.get("accuracy_high") is not None:
                axis.plot([low, high], [row, row], color=ink, linewidth=5, alpha=0.35)
            axis.plot([accuracy], [row], "o", color=ink, markersize=8, markeredgecolor=PAPER, markeredgewidth=1.2)
            _note(axis, f"{accuracy:.1f} %", (1.21, 0.0), row, bold=True)
        _name_rows(axis, [stage_label(facts["name"]) for facts in rows])
        axis.set_xlim(0, 101)
        axis.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
        axis.grid(axis="x")
        return to_svg(figure, "accuracy", "Accuracy on held-out prompts by model, with confidence intervals")


def teacher_kl_plot(evaluations: Sequence[JsonObject]) -> str | None:
    """Return teacher_kl of each model that has one."""
    rows = [facts for facts in evaluations if facts.get("teacher_kl") is not None]
    if not rows:
        return None
    with drawing():
        figure, (axis,) = panels(0.55 + _ROW_IN * len(rows))
        values = [facts["teacher_kl"] for facts in rows]
        axis.barh(range(len(rows)), values, height=0.42, color=[stage_ink(facts["name"]) for facts in rows])
        for row, value in enumerate(values):
            axis.annotate(f"{value:.3f}", (max(value, 0.0), row), (6, 0), va="center", **_BOLD)
        _name_rows(axis, [stage_label(facts["name"]) for facts in rows])
        axis.set_xlim(min(0.0, *values), max(1e-3, *values) * 1.16)
        axis.locator_params(axis="x", nbins=5)
        axis.grid(axis="x")
        axis.set_axisbelow(True)
        return to_svg(figure, "kl", "teacher_kl on held-out prompts by model")


def funnel_plot(funnel: Sequence[Sequence[str | int]], tokens: Sequence[int] = ()) -> str | None:
    """Return rollouts left after each step of the dataset, without inner steps that drop none.

    `funnel` has the name of each step and the rollouts left, `tokens` the tokens left, drawn as thin bars.
    """
    if not funnel:
        return None
    counts = [int(count) for _, count in funnel]
    last = len(counts) - 1
    steps = [step for step, count in enumerate(counts) if step in (0, last) or count < counts[step - 1]]
    labels = [str(funnel[step][0]).replace("_", " ") for step in steps]
    # In points, since the panel's width depends on the row names.
    counts_end = max(38.0, 8 + _DIGIT_POINTS * max(len(f"{count:,}") for count in counts))
    shares_end = counts_end + 40
    with drawing():
        figure, (axis,) = panels(0.25 + 0.38 * len(steps), used_width=1 - (shares_end + 8) / (72 * WIDTH_IN))
        _shares(axis, [counts[step] for step in steps], height=0.56, shift=0.0, ink=stage_ink("teacher"))
        if tokens:
            _shares(axis, [tokens[step] for step in steps], height=0.1, shift=0.38, ink=stage_ink("sft"))
        for row, step in enumerate(steps):
            _note(axis, f"{counts[step]:,}", (1.0, counts_end), row, bold=True)
            _note(axis, f"{100 * counts[step] / max(counts[0], 1):.0f} %", (1.0, shares_end), row, bold=False)
        _name_rows(axis, [label[:1].upper() + label[1:] for label in labels])
        axis.set_xlim(0, 1)
        axis.set_xticks([])
        axis.spines["bottom"].set_visible(False)
        return to_svg(figure, "funnel", "Rollouts left after each step of the dataset")


def _shares(axis: "Axes", counts: Sequence[int], *, height: float, shift: float, ink: str) -> None:
    """Draw bars of each count relative to the first."""
    rows = [row + shift for row in range(len(counts))]
    axis.barh(rows, [1] * len(counts), height=height, color=RULE, alpha=0.45)
    axis.barh(rows, [count / max(counts[0], 1) for count in counts], height=height, color=ink)


def _name_rows(axis: "Axes", labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.tick_params(axis="y", labelcolor=INK, pad=8)
    axis.set_ylim(len(labels) - 0.5, -0.5)


def _note(axis: "Axes", text: str, right_edge: tuple[float, float], row: int, *, bold: bool) -> None:
    """Write text right of the panel that ends at `right_edge` in (panel widths, points more)."""
    widths, points = right_edge
    style = _BOLD if bold else {**_BOLD, "color": MUTED, "fontweight": "normal"}
    place: Mapping[str, Any] = {
        "xycoords": axis.get_yaxis_transform(),
        "ha": "right",
        "va": "center",
        "annotation_clip": False,
    }
    axis.annotate(text, (widths, row), (points, 0.0), **place, **style).set_in_layout(False)


class Point(NamedTuple):
    step: int
    value: float


def series(rows: Sequence[JsonObject], metric: str) -> list[Point]:
    """Return the finite values of one metric by step; rows without it are skipped."""
    points = [Point(int(row["step"]), float(row[metric])) for row in rows if row.get(metric) is not None]
    return [point for point in points if math.isfinite(point.value)]


def sft_plot(rows: Sequence[JsonObject]) -> str | None:
    """Return the cross-entropy of training and validation by step, and the accuracy of sampled answers if measured.

    Cross-entropy is drawn whatever the loss, so that training and validation compare.
    """
    loss, validation = series(rows, "sft/nll"), series(rows, "sft/validation_nll")
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
    """Draw teacher_kl, the one of each of several teachers, and reward by step, one above the other."""
    prefix = "on_policy/teacher_kl/"
    teachers = sorted({name.removeprefix(prefix) for row in rows for name in row if name.startswith(prefix)})
    curves = [
        ("teacher_kl, nats per token", series(rows, "on_policy/teacher_kl"), "{:.3f}"),
        *((f"teacher_kl to {name}", series(rows, prefix + name), "{:.3f}") for name in teachers if len(teachers) > 1),
        ("Reward, share of right answers", series(rows, "on_policy/reward"), "{:.2f}"),
    ]
    curves = [curve for curve in curves if curve[1]]
    if not curves:
        return None
    with drawing():
        figure, axes = panels(_CURVES_IN * max(1.0, len(curves) / 2), len(curves))
        for axis, (title, points, form) in zip(axes, curves, strict=True):
            _curve(axis, points, stage_ink("on_policy"))
            axis.set_title(title)
            _corner(axis, form.format(_smooth(points)[-1].value), stage_ink("on_policy"), line=0)
            axis.grid(axis="y")
            axis.locator_params(axis="y", nbins=4)
            lowest, highest = (extreme(point.value for point in points) for extreme in (min, max))
            # A reward in [0, 1] gets the full scale, on which a small gain looks small.
            is_share = title.startswith("Reward") and lowest >= 0 and highest <= 1
            axis.set_ylim(min(0.0, lowest), 1.0 if is_share else None)
        _steps(axes[-1])
        return to_svg(figure, "on-policy", "On-policy distillation: teacher_kl and reward by optimizer step")


def _curve(axis: "Axes", points: Sequence[Point], ink: str) -> None:
    smooth = _smooth(points)
    if len(points) >= _SMOOTH_FROM:
        axis.plot([p.step for p in points], [p.value for p in points], color=ink, linewidth=0.9, alpha=0.3)
    axis.plot([p.step for p in smooth], [p.value for p in smooth], color=ink, linewidth=1.8)
    if len(points) == 1:
        axis.plot([points[0].step], [points[0].value], "o", color=ink, markersize=5)


def _marked(axis: "Axes", points: Sequence[Point]) -> None:
    """Draw a line with a marker for each measurement."""
    steps, values = zip(*points, strict=True)
    axis.plot(steps, values, "o-", color=INK, markersize=4.5, linewidth=1, markeredgecolor=PAPER)


def _smooth(points: Sequence[Point]) -> list[Point]:
    """Return the centred moving mean over a twentieth of the curve; short curves are unchanged."""
    if len(points) < _SMOOTH_FROM:
        return list(points)
    window = np.ones(2 * (len(points) // 40) + 1)
    sums = np.convolve([point.value for point in points], window, "same")
    means = sums / np.convolve(np.ones(len(points)), window, "same")
    return [Point(point.step, mean) for point, mean in zip(points, means.tolist(), strict=True)]


def _corner(axis: "Axes", text: str, ink: str, *, line: int) -> None:
    """Write the last value of a curve above the panel on the right; `line` 1 is one line lower."""
    style = {**_BOLD, "color": ink}
    note = axis.annotate(text, (1.0, 1.0), (0, 6 - 15 * line), xycoords="axes fraction", ha="right", **style)
    note.set_in_layout(False)


def _steps(axis: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axis.grid(axis="y")
    axis.set_xlabel("Optimizer step")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
