"""Pictures of few figures beside each other: the models' accuracy and teacher_kl, and a dataset's funnel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stillhouse.report.svg import INK, MUTED, PAPER, RULE, WIDTH_IN, drawing, panels, stage_ink, to_svg
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGE_LABELS = {
    "base": "Base student",
    "champion": "Champion",
    "sft": "After SFT",
    "on_policy": "After on-policy",
    "teacher": "Teacher",
}
_ROW_IN = 0.42
_DIGIT_POINTS = 6.8
"""Width of a bold digit."""


def stage_label(name: str) -> str:
    """What a reader is shown for a stage's name."""
    return STAGE_LABELS.get(name, name.replace("_", " "))


def accuracy_plot(evaluations: Sequence[JsonObject]) -> str | None:
    """Accuracy of each model with its confidence interval, on the whole scale from 0 to 100 %."""
    rows = [facts for facts in evaluations if facts.get("accuracy") is not None]
    if not rows:
        return None
    with drawing():
        figure, (axis,) = panels(0.55 + _ROW_IN * len(rows), used_width=0.86)
        for place, facts in enumerate(rows):
            ink, accuracy = stage_ink(facts["name"]), 100 * facts["accuracy"]
            low, high = (100 * (facts.get(key) or 0.0) for key in ("accuracy_low", "accuracy_high"))
            if facts.get("accuracy_low") is not None and facts.get("accuracy_high") is not None:
                axis.plot([low, high], [place, place], color=ink, linewidth=5, alpha=0.35)
            axis.plot([accuracy], [place], "o", color=ink, markersize=8, markeredgecolor=PAPER, markeredgewidth=1.2)
            _beside(axis, f"{accuracy:.1f} %", (1.21, 0.0), place, bold=True)
        _name_rows(axis, [stage_label(facts["name"]) for facts in rows])
        axis.set_xlim(0, 101)
        axis.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
        axis.grid(axis="x")
        return to_svg(figure, "accuracy", "Accuracy on held-out prompts by model, with confidence intervals")


def teacher_kl_plot(evaluations: Sequence[JsonObject]) -> str | None:
    """teacher_kl of each model that has one."""
    rows = [facts for facts in evaluations if facts.get("teacher_kl") is not None]
    if not rows:
        return None
    with drawing():
        figure, (axis,) = panels(0.55 + _ROW_IN * len(rows))
        values = [facts["teacher_kl"] for facts in rows]
        axis.barh(range(len(rows)), values, height=0.42, color=[stage_ink(facts["name"]) for facts in rows])
        for place, value in enumerate(values):
            axis.annotate(
                f"{value:.3f}",
                (max(value, 0.0), place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                color=INK,
                fontweight="bold",
            )
        _name_rows(axis, [stage_label(facts["name"]) for facts in rows])
        axis.set_xlim(min(0.0, *values, 0.0), max(*values, 1e-3, 1e-3) * 1.16)
        axis.locator_params(axis="x", nbins=5)
        axis.grid(axis="x")
        axis.set_axisbelow(True)
        return to_svg(figure, "kl", "teacher_kl on held-out prompts by model")


def funnel_plot(funnel: Sequence[Sequence[str | int]], tokens: Sequence[int] = ()) -> str | None:
    """How many rollouts each step of the dataset let through; steps in the middle that drop none are left out.

    Args:
        funnel: Name of each step and the rollouts left after it.
        tokens: Tokens left after each step, shown as thin bars below; none to show rollouts alone.
    """
    if not funnel:
        return None
    counts = [int(count) for _, count in funnel]
    last = len(counts) - 1
    places = [at for at, count in enumerate(counts) if at in (0, last) or count < counts[at - 1]]
    labels = [str(funnel[at][0]).replace("_", " ") for at in places]
    # In points, as the panel is the narrower the longer its row names are.
    counts_end = max(38.0, 8 + _DIGIT_POINTS * max(len(f"{count:,}") for count in counts))
    shares_end = counts_end + 40
    with drawing():
        figure, (axis,) = panels(0.25 + 0.38 * len(places), used_width=1 - (shares_end + 8) / (72 * WIDTH_IN))
        _shares(axis, [counts[at] for at in places], height=0.56, shift=0.0, ink=stage_ink("teacher"))
        if tokens:
            _shares(axis, [tokens[at] for at in places], height=0.1, shift=0.38, ink=stage_ink("sft"))
        for row, at in enumerate(places):
            _beside(axis, f"{counts[at]:,}", (1.0, counts_end), row, bold=True)
            _beside(axis, f"{100 * counts[at] / max(counts[0], 1):.0f} %", (1.0, shares_end), row, bold=False)
        _name_rows(axis, [label[:1].upper() + label[1:] for label in labels])
        axis.set_xlim(0, 1)
        axis.set_xticks([])
        axis.spines["bottom"].set_visible(False)
        return to_svg(figure, "funnel", "Rollouts left after each step of the dataset")


def _shares(axis: "Axes", counts: Sequence[int], *, height: float, shift: float, ink: str) -> None:
    """Bars of each count's share of the first one."""
    rows = [row + shift for row in range(len(counts))]
    axis.barh(rows, [1] * len(counts), height=height, color=RULE, alpha=0.45)
    axis.barh(rows, [count / max(counts[0], 1) for count in counts], height=height, color=ink)


def _name_rows(axis: "Axes", labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.tick_params(axis="y", labelcolor=INK, pad=8)
    axis.set_ylim(len(labels) - 0.5, -0.5)


def _beside(axis: "Axes", text: str, right_edge: tuple[float, float], place: int, *, bold: bool) -> None:
    """Text right of the panel, ending at (panel widths, points more); the caller leaves room for it."""
    widths, points = right_edge
    note = axis.annotate(
        text,
        (widths, place),
        xytext=(points, 0.0),
        xycoords=axis.get_yaxis_transform(),
        textcoords="offset points",
        ha="right",
        va="center",
        annotation_clip=False,
        color=INK if bold else MUTED,
        fontweight="bold" if bold else "normal",
    )
    note.set_in_layout(False)
