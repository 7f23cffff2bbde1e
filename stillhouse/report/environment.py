"""What pages have in common: how templates are filled, how numbers are written, a style sheet."""

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stillhouse.report import format as formats

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER: Final = Path(__file__).parent
PAGE_CSS: Final = _FOLDER / "report.css"


def page_environment(folder: Path) -> "Environment":
    """Templates of `folder` and those that pages share. All text is escaped; an unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, _FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=formats.count,
        decimal=formats.decimal,
        percent=formats.percent,
        seconds=formats.seconds,
        dollars=formats.dollars,
        metric=formats.metric,
        csp_hash=csp_hash,
    )
    environment.globals["interval"] = formats.interval
    return environment


def csp_hash(text: str) -> str:
    """What a content security policy calls an inline script or style by: nothing else on the page may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
