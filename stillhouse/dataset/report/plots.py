"""Plots of the dataset's report: the funnel, and a histogram for each measure."""

from typing import TYPE_CHECKING, Final

import numpy as np

from stillhouse.dataset.report.summary import DatasetSummary, KeptAndDropped
from stillhouse.labels.declare import Measure
from stillhouse.report.plots import funnel_plot
from stillhouse.report.svg import MUTED, drawing, panels, stage_ink, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

_HEIGHT_IN: Final = 1.75
_NUM_BINS: Final = 36
_MAX_BAR_SHARE: Final = 8
"""Bars are no wider than this part of the axis."""
_MAX_TICKS: Final = 8
_LOG_FROM: Final = 20.0
"""Ratio of the largest to the smallest value from which the axis is logarithmic."""


def funnel_figure(summary: DatasetSummary) -> str | None:
    """Return rows and tokens left after each step that drops some."""
    steps = summary.funnel
    tokens = [
        step.student_tokens if summary.total("num_tokens") is not None else step.completion_tokens for step in steps
    ]
    return funnel_plot([(step.name, step.num_rows) for step in steps], tokens if any(tokens) else ())


def histogram(measure: Measure, parts: KeptAndDropped, name: str) -> str | None:
    """Return a histogram of kept rows with dropped ones stacked on top; None if all rows have the same value.

    `name` is unique on the page: the prefix of the ids in the SVG.
    """
    values = [part.values() for part in parts]
    distinct = np.unique(np.concatenate(values))
    if len(distinct) < 2:
        return None
    with drawing():
        figure, (axis,) = panels(_HEIGHT_IN)
        is_log = measure.unit != "number" and distinct[0] > 0 and distinct[-1] / distinct[0] >= _LOG_FROM
        edges = _edges(distinct, is_log=is_log)
        kept, dropped = (np.histogram(part, bins=edges)[0] for part in values)
        widths = np.minimum(np.diff(edges) * 0.86, np.inf if is_log else (edges[-1] - edges[0]) / _MAX_BAR_SHARE)
        lefts = edges[:-1] + (np.diff(edges) - widths) / 2
        axis.bar(lefts, kept, widths, align="edge", color=stage_ink("teacher"))
        axis.bar(lefts, dropped, widths, align="edge", bottom=kept, color=MUTED, alpha=0.4)
        _axes(axis, measure, distinct, is_log=is_log)
        return to_svg(figure, name, f"{measure.title}: rows by value, kept and dropped")


def _edges(distinct: "NDArray[np.float64]", *, is_log: bool) -> "NDArray[np.float64]":
    """Return the bin edges: one bin for each value if the values form a small grid, as grades and counts do."""
    low, high = float(distinct[0]), float(distinct[-1])
    gap = float(np.diff(distinct).min())
    if (distinct == distinct.round()).all():
        gap = max(gap, 1.0)
    num_bars = round((high - low) / gap) + 1
    if num_bars <= _NUM_BINS and (np.abs((distinct - low) / gap - ((distinct - low) / gap).round()) < 0.01).all():
        return low + gap * (np.arange(num_bars + 1, dtype=np.float64) - 0.5)
    edges = np.geomspace(low, high, _NUM_BINS + 1) if is_log else np.linspace(low, high, _NUM_BINS + 1)
    return np.asarray(edges, dtype=np.float64)


def _axes(axis: "Axes", measure: Measure, distinct: "NDArray[np.float64]", *, is_log: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis.grid(axis="y")
    axis.set_axisbelow(True)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if is_log:
        axis.set_xscale("log")
        decades = np.log10(distinct[-1] / distinct[0])
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
        axis.xaxis.set_minor_locator(NullLocator())
    elif len(distinct) <= _MAX_TICKS:
        axis.set_xticks(distinct)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=measure.unit == "count"))
    sign = {"usd": "$", "seconds": ""}.get(measure.unit, "")
    end = " s" if measure.unit == "seconds" else ""
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{sign}{_short(value)}{end}"))


def _short(value: float) -> str:
    """Return a number of three digits without exponent."""
    value = float(f"{value:.3g}")
    return f"{value:,.10f}".rstrip("0").rstrip(".") if abs(value) < 1e6 else f"{value / 1e6:,.10g}M"
