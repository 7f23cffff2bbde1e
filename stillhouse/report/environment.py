"""Common parts of all pages: templates, the way numbers are written, style sheets."""

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stillhouse.report.format import count, decimal, dollars, interval, metric, percent, seconds

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER: Final = Path(__file__).parent
CONVERSATION_CSS: Final = _FOLDER / "conversation.css"
REPORT_CSS: Final = _FOLDER / "report.css"
"""Tables, tiles and plots of a report."""


def page_environment(folder: Path) -> "Environment":
    """Return a Jinja environment of the templates of `folder` and the shared ones, which rejects unknown names."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, _FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (count, decimal, percent, seconds, dollars, metric, csp_hash):
        environment.filters[function.__name__] = function
    environment.globals["interval"] = interval
    return environment


def style_sheet(*files: Path) -> str:
    """Return the theme of all pages followed by `files`."""
    return "\n".join(file.read_text(encoding="utf-8") for file in (_FOLDER / "theme.css", *files))


def csp_hash(text: str) -> str:
    """Return the source expression that allows one inline script or style in a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
