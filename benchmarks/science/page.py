"""The page: one HTML file of claims, what was measured, and pictures."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.frame.rounds import Spread, spread
from benchmarks.science.experiments import EXPERIMENTS
from benchmarks.science.findings import SeedResult, figures_of
from benchmarks.science.plots import curves_plot, final_accuracies, finals_plot
from stillhouse.report.environment import REPORT_CSS, page_environment, style_sheet
from stillhouse.store.atomic import write_atomic

_FOLDER: Final = Path(__file__).parent


def write_page(path: Path, results_by_name: Mapping[str, Sequence[SeedResult]], *, quick: bool) -> None:
    """Writes the page, whole or not at all.

    Args:
        path: the file.
        results_by_name: the results of all seeds, by experiment.
        quick: says on the page that its figures mean nothing.

    Raises:
        StoreError: it cannot be written.
    """
    environment = page_environment(_FOLDER)
    environment.filters |= {"figure": number, "range": range_of, "share": share_of}
    page = environment.get_template("page.html.j2").render(
        css=style_sheet(REPORT_CSS),
        sections=[_section(name, results) for name, results in results_by_name.items()],
        seeds=sorted({result.seed for results in results_by_name.values() for result in results}),
        quick=quick,
    )
    write_atomic(path, page.encode("utf-8"))


def _section(name: str, results: Sequence[SeedResult]) -> dict[str, Any]:
    experiment = EXPERIMENTS[name]
    over = experiment.curves_over
    return {
        "experiment": experiment,
        "verdicts": experiment.verdicts(results),
        "figures": figures_of(results),
        "rows": _rows(results),
        "has_target": results[0].target is not None,
        "curves": curves_plot(name, results, over) if over else None,
        "finals": finals_plot(name, results),
    }


def _rows(results: Sequence[SeedResult]) -> list[dict[str, Any]]:
    """What the table says of each training."""
    rows = []
    for label, final in final_accuracies(results).items():
        row: dict[str, Any] = {"label": label, "final": final}
        if results[0].target is not None:
            reached = [result.curves[label].reached(result.target or 0.0) for result in results]
            for what in ("steps", "tokens", "flops", "seconds"):
                row[what] = spread([getattr(one, what) for one in reached])
        rows.append(row)
    return rows


def number(value: float) -> str:
    """Three digits that matter."""
    if math.isinf(value):
        return "\u221e"
    if abs(value) >= 1e6:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def range_of(measured: Spread) -> str:
    """The median and, where seeds differ, how far."""
    if measured.low == measured.high:
        return number(measured.median)
    return f"{number(measured.median)} ({number(measured.low)} to {number(measured.high)})"


def share_of(measured: Spread) -> str:
    """The same of shares, in percent."""
    return f"{100 * measured.median:.1f} % ({100 * measured.low:.1f} to {100 * measured.high:.1f})"
