"""Matplotlib figures as inline SVG with colours and font of the page.

Figures are drawn in placeholder colours that become CSS variables, so that one SVG serves light and dark pages.
`pyplot` is avoided, since it keeps figures in a global list.
"""

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, RULE, PAPER = "#010203", "#010204", "#010205", "#010206"
_STAGES = ("base", "sft", "self_training", "on_policy", "teacher", "champion")
_STAGE_INKS = {name: f"#0103{number:02d}" for number, name in enumerate(_STAGES)}
_VARIABLES = {INK: "ink", MUTED: "muted", RULE: "rule", PAPER: "paper"} | {
    ink: f"stage-{name}" for name, ink in _STAGE_INKS.items()
}

WIDTH_IN = 6.0
"""Width of every figure: 432 SVG units, so that text of 10 units stays readable on a phone."""

_STYLE = {
    "svg.fonttype": "none",  # text stays text: it takes the page's font and can be searched
    "svg.hashsalt": "stillhouse",
    "font.size": 10.5,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "lines.solid_capstyle": "round",
}


def stage_ink(name: str) -> str:
    """Return the colour of a stage in all plots; the muted ink for other names."""
    return _STAGE_INKS.get(name, MUTED)


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the plot style inside the block; figures must be drawn and saved there."""
    import matplotlib

    # Silences the message about building its font cache.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context(_STYLE):
        yield


def panels(height_in: float, count: int = 1, *, used_width: float = 1.0) -> tuple["Figure", list["Axes"]]:
    """Return a figure with `count` stacked panels that share their x axis.

    They take `used_width`, a share of the width; the rest, on the right, is for text.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(rect=(0.0, 0.0, used_width, 1.0))
    figure = Figure(figsize=(WIDTH_IN, height_in), layout=layout)
    figure.patch.set_alpha(0.0)
    axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    for axis in axes:
        axis.patch.set_alpha(0.0)
    return figure, list(axes)


def to_svg(figure: "Figure", name: str, description: str) -> str:
    """Return a figure drawn within `drawing()` as an `<svg>` element without fixed size, external reference or date.

    Its ids begin with `name`, which is unique on the page.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"| (?:width|height)="[\d.]+pt"| version="1.1"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*; ?", "", text)
    text = re.sub(r"font: (?:(\d+) )?([\d.]+px) [^;\"]*", _without_family, text)
    for ink, variable in _VARIABLES.items():
        text = text.replace(ink, f"var(--{variable})")
    return text.replace("<svg", f'<svg role="img" aria-label={quoteattr(description)}', 1)


def _without_family(match: re.Match[str]) -> str:
    weight, size = match.groups()
    return f"font-size: {size}" if weight is None else f"font-weight: {weight}; font-size: {size}"
