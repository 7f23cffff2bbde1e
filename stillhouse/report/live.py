"""The page of a run that is under way: it reloads itself until the report takes its place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stillhouse.progress.run_state import Bar, RunState
from stillhouse.progress.text import details_of, run_text, short
from stillhouse.report.conversation import SampleTrajectory
from stillhouse.report.environment import CONVERSATION_CSS, REPORT_CSS, page_environment, style_sheet
from stillhouse.report.page import FILE_NAME
from stillhouse.report.plots import stage_label
from stillhouse.store.atomic import write_atomic

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER: Final = Path(__file__).parent
_RELOAD_S: Final = 3
_WIDTH: Final = 300
_HEIGHT: Final = 90

Curve = Sequence[tuple[int, float]]
"""Items or steps done, and a value."""


@dataclass(frozen=True, slots=True)
class LiveData:
    title: str
    as_of: datetime
    run: RunState
    bars: Mapping[str, Bar]
    curves: Mapping[str, Mapping[str, Curve]]
    """By stage and figure."""
    trajectories: Sequence[SampleTrajectory]
    """The last ones, newest first."""


def write_live_page(folder: Path, data: LiveData) -> Path:
    """Write the page into `folder` atomically, under the name of the report; raise StoreError if it cannot."""
    path = folder / FILE_NAME
    write_atomic(path, render_live(data).encode("utf-8"))
    return path


def render_live(data: LiveData) -> str:
    """Return the HTML of the page; equal data gives equal bytes."""
    return (
        _environment()
        .get_template("live.html.j2")
        .render(
            title=data.title,
            style=style_sheet(REPORT_CSS, CONVERSATION_CSS, _FOLDER / "live.css"),
            reload_s=_RELOAD_S,
            now=run_text(data.run) or "starting",
            as_of=data.as_of.strftime("%H:%M:%S UTC"),
            stages=data.run.stages,
            bars=[(name, bar, details_of(bar)) for name, bar in data.bars.items()],
            curves=[
                _view(stage, name, points)
                # What is under way comes first.
                for stage, curves in reversed(list(data.curves.items()))
                for name, points in curves.items()
                if len(points) > 1
            ],
            trajectories=data.trajectories,
        )
    )


@lru_cache(maxsize=1)
def _environment() -> "Environment":
    # A page is rendered every few seconds: its template is compiled once.
    environment = page_environment(_FOLDER)
    environment.filters["label"] = stage_label
    return environment


def _view(stage: str, name: str, points: Curve) -> dict[str, str]:
    """Return a curve as the page draws it, in an SVG of 300 by 90 units."""
    steps, values = zip(*points, strict=True)
    low, high = min(0.0, *values), max(values)
    width, height = (steps[-1] - steps[0]) or 1, (high - low) or 1.0
    places = (
        f"{_WIDTH * (step - steps[0]) / width:.1f},{_HEIGHT * (1 - (value - low) / height):.1f}"
        for step, value in points
    )
    figures = {"last": values[-1], "low": low, "high": high}
    shown = {key: short(value) if abs(value) >= 100.0 else f"{value:.3g}" for key, value in figures.items()}
    return {"stage": stage, "name": name.replace("_", " "), "path": "M" + " L".join(places), **shown}
