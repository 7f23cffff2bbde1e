"""`open_journal`: one open journal of a folder for all that use it at the same time in this process."""

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from stillhouse.inference.journal.journal import JOURNAL_FILE, Journal
from stillhouse.processes.shared import Shared

_open: Final = Shared[Journal]()


def open_journal(folder: str | Path) -> AbstractContextManager[Journal]:
    """Yield a folder's journal; blocks that overlap share it, and with it each fsync. Raise StoreError as `Journal`."""
    path = Path(folder).absolute() / JOURNAL_FILE
    return _open.used(path, partial(Journal, path))
