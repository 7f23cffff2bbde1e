"""From what a user names to a page on disk."""

import re
from pathlib import Path
from typing import NamedTuple

from stillhouse.store.artifacts import require_whole
from stillhouse.view.page import Written, write_page
from stillhouse.view.rows import read_view_rows
from stillhouse.view.sources import find_source


class Viewed(NamedTuple):
    """A page and what came onto it."""

    page: Path
    written: Written


def view_run(name: str, store_root: Path, output: Path | None, max_rows: int) -> Viewed:
    """Writes the page of a run, an artifact's folder or a file.

    Args:
        name: what `find_source` takes.
        store_root: where runs are looked up.
        output: the page; None makes it `views/TITLE.html` in the store.
        max_rows: most trajectories on the page.

    Raises:
        InputError: `name` means nothing, or what it means cannot be read.
        StoreError: the page cannot be written, or an artifact that it is made of is damaged.
    """
    source = find_source(name, store_root)
    for folder in {path.parent: None for path in (*(part.path for part in source.parts), *source.labels)}:
        require_whole(folder)
    file_name = re.sub(r"[^\w.-]+", "-", source.title).strip("-.") or "trajectories"
    page = output or store_root / "views" / f"{file_name}.html"
    return Viewed(page, write_page(page, source.title, source.place, read_view_rows(source), max_rows))
