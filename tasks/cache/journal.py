"""The journal that a task's answers go to, and what keeps it in step with those of other machines."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stillhouse.inference.journal import Journal, open_journal
from stillhouse.inference.journal.copies import INTERVAL_S, Copier, JournalCopies
from stillhouse.store import ArtifactStore
from tasks.run.context import RunContext


@dataclass(slots=True)
class _Copied:
    copier: Copier
    num_users: int = 0


_copied: Final[dict[Path, _Copied]] = {}
_lock: Final = threading.Lock()


@asynccontextmanager
async def journal_of(context: RunContext) -> AsyncIterator[Journal]:
    """The journal of a run's answers. With object storage it begins with the answers that other machines had.

    Raises:
        StoreError: it cannot be opened, or the storage cannot be reached at the start.
    """
    store = context.store
    # A part belongs to a process that takes it back, and hands on what it holds.
    if store.remote is None or context.journal_part is not None:
        with open_journal(context.journal) as journal:
            yield journal
        return
    await asyncio.to_thread(_begin, JournalCopies(store.remote, store.root), store)
    try:
        with open_journal(context.journal) as journal:
            yield journal
    finally:
        await asyncio.to_thread(_end, store)


def _begin(copies: JournalCopies, store: ArtifactStore) -> None:
    with _lock:
        if store.root not in _copied:
            copies.take_over()
            _copied[store.root] = _Copied(Copier(copies, INTERVAL_S))
        _copied[store.root].num_users += 1


def _end(store: ArtifactStore) -> None:
    with _lock:
        shared = _copied[store.root]
        shared.num_users -= 1
        if shared.num_users == 0:
            del _copied[store.root]
            shared.copier.stop()
