"""What MkDocs calls while it builds the guide: pages and tables that follow from the code are made here, never kept."""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import column_reference
import command_reference
import config_reference
import estimates
import foreign_keys
import models

_ROOT = Path(__file__).resolve().parents[2]
_PLACE = re.compile(r"^<!-- table: (?P<name>.+) -->$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages of the config's sections where the navigation names their folder."""
    config.nav = _filled(config.nav, [{_title(path): path} for path in config_reference.config_pages()])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made, and the one that has its place beside the README."""
    pages = {**config_reference.config_pages(), command_reference.PAGE: command_reference.command_page()}
    pages["operations/security.md"] = (_ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts tables where a page asks for them by `<!-- table: NAME -->`."""
    tables = column_reference.column_tables() | estimates.tables() | foreign_keys.tables() | models.tables()
    return _PLACE.sub(lambda match: tables[match["name"]], markdown)


def _filled(nav: Any, pages: list[dict[str, str]]) -> Any:
    """The navigation with `pages` in the place of the folder's name."""
    if nav == config_reference.FOLDER:
        return pages
    if isinstance(nav, dict):
        return {title: _filled(inside, pages) for title, inside in nav.items()}
    return [_filled(entry, pages) for entry in nav] if isinstance(nav, list) else nav


def _title(path: str) -> str:
    name = Path(path).stem
    return "All sections" if name == "index" else name
