"""The journal of a task's completions, and its synchronization with the journals of other machines."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stillhouse.inference.copier import Copier
from stillhouse.inference.journal import Journal, open_journal
from stillhouse.inference.journal.copies import JournalCopies
from stillhouse.store import ArtifactStore
from tasks.run.context import RunContext


@dataclass(slots=True)
class _Synced:
    copier: Copier
    num_users: int = 0


_synced: Final[dict[Path, _Synced]] = {}
_lock: Final = threading.Lock()


@asynccontextmanager
async def journal_of(context: RunContext) -> AsyncIterator[Journal]:
    """Open the journal of a run; with object storage it starts with the completions of other machines."""
    store = context.store
    # The process that lent out a part merges it back, and copies it to the storage.
    copies = None
    if store.remote is not None and context.journal_part is None:
        copies = JournalCopies(store.remote, store.root)
        await asyncio.to_thread(_start_sync, copies, store)
    try:
        with open_journal(context.journal) as journal:
            yield journal
    finally:
        if copies is not None:
            await asyncio.to_thread(_stop_sync, store)


def _start_sync(copies: JournalCopies, store: ArtifactStore) -> None:
    with _lock:
        if store.root not in _synced:
            copies.take_over()
            _synced[store.root] = _Synced(Copier(copies.hand_on))
        _synced[store.root].num_users += 1


def _stop_sync(store: ArtifactStore) -> None:
    with _lock:
        synced = _synced[store.root]
        synced.num_users -= 1
        if synced.num_users == 0:
            del _synced[store.root]
            synced.copier.stop()
