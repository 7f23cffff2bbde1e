"""The page's pictures: accuracy as training goes on, and where each training ended."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from benchmarks.frame.rounds import Spread, spread
from benchmarks.science.findings import SeedResult
from stillhouse.report.svg import INK, MUTED, PAPER, drawing, panels, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INKS: Final = (
    *("#2f7a9a", "#bf6516", "#5f5395", "#2d7a4b", "#b03a2e"),
    *("#8b8577", "#c9a227", "#3f5fbf", "#b04a8f", "#7a9a2f"),
)
"""Readable on a light page and on a dark one."""
_AXES: Final = {
    "step": "Optimiser step",
    "tokens": "Tokens trained on",
    "flops": "Floating-point operations",
    "seconds": "Seconds",
}
_ROW_IN: Final = 0.34


def curves_plot(name: str, results: Sequence[SeedResult], over: str) -> str:
    """Accuracy over `over` for each training: the median of the seeds in a band from the lowest to the highest."""
    with drawing():
        figure, (axis,) = panels(4.4)
        for ink, label in zip(_INKS, results[0].curves, strict=False):
            _band(axis, results, label, over, ink)
        targets = [result.target for result in results if result.target is not None]
        if targets:
            axis.axhline(100 * statistics.median(targets), color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
        axis.set_ylim(0, 101)
        axis.set_yticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
        axis.set_xlabel(_AXES[over])
        axis.grid(axis="y")
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=9.5, labelcolor=INK)
        return to_svg(figure, f"{name}-curves", f"Accuracy by {_AXES[over].lower()} for each training")


def finals_plot(name: str, results: Sequence[SeedResult]) -> str:
    """The last accuracy of each training: the median of the seeds on a bar from the lowest to the highest."""
    finals = final_accuracies(results)
    with drawing():
        figure, (axis,) = panels(0.6 + _ROW_IN * len(finals))
        for place, final in enumerate(finals.values()):
            low, middle, high = (100 * value for value in (final.low, final.median, final.high))
            axis.plot([low, high], [place, place], color=_INKS[0], linewidth=5, alpha=0.35)
            axis.plot([middle], [place], "o", color=_INKS[0], markersize=7, markeredgecolor=PAPER)
        axis.set_yticks(range(len(finals)), list(finals))
        axis.tick_params(axis="y", labelcolor=INK, pad=8)
        axis.set_ylim(len(finals) - 0.5, -0.5)
        axis.set_xlim(0, 101)
        axis.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
        axis.grid(axis="x")
        return to_svg(figure, f"{name}-finals", "Last accuracy of each training with its range over seeds")


def final_accuracies(results: Sequence[SeedResult]) -> dict[str, Spread]:
    """By training, over the seeds."""
    return {label: spread([result.curves[label].final for result in results]) for label in results[0].curves}


def _band(axis: "Axes", results: Sequence[SeedResult], label: str, over: str, ink: str) -> None:
    # Points of one step belong together, though seeds differ in the tokens they took to it.
    together = list(zip(*(result.curves[label].points for result in results), strict=True))
    places = [statistics.median(getattr(point, over) for point in points) for points in together]
    accuracies = [[100 * point.accuracy for point in points] for points in together]
    axis.fill_between(
        places, list(map(min, accuracies)), list(map(max, accuracies)), color=ink, alpha=0.18, linewidth=0
    )
    axis.plot(places, list(map(statistics.median, accuracies)), color=ink, linewidth=1.8, label=label)
