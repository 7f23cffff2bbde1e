"""`open_journal`: one open journal of a folder for all that use it at the same time in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stillhouse.inference.journal.journal import JOURNAL_FILE, Journal


@dataclass(slots=True)
class _SharedJournal:
    journal: Journal
    num_users: int = 0


_open: Final[dict[Path, _SharedJournal]] = {}
_lock: Final = threading.Lock()


@contextmanager
def open_journal(folder: str | Path) -> Iterator[Journal]:
    """Yield a folder's journal; blocks that overlap share it, and with it each fsync. Raise StoreError as `Journal`."""
    path = Path(folder).absolute() / JOURNAL_FILE
    with _lock:
        shared = _open.get(path)
        if shared is None:
            shared = _open[path] = _SharedJournal(Journal(path))
        shared.num_users += 1
    try:
        yield shared.journal
    finally:
        with _lock:
            shared.num_users -= 1
            is_last = shared.num_users == 0
            if is_last:
                del _open[path]
        if is_last:
            shared.journal.close()
