"""The journal of a task's completions, and its synchronization with the journals of other machines."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Final

from stillhouse.inference.copier import Copier
from stillhouse.inference.journal import Journal, open_journal
from stillhouse.inference.journal.copies import JournalCopies
from stillhouse.processes.shared import Shared
from tasks.run.context import RunContext

_copied: Final = Shared[None]()
"""By the folder of a store, the copying of its journal to object storage."""


@asynccontextmanager
async def journal_of(context: RunContext) -> AsyncIterator[Journal]:
    """Open the journal of a run; with object storage it starts with the completions of other machines."""
    store, copying = context.store, ExitStack()
    # The process that lent out a part merges it back, and copies it to the storage.
    if store.remote is not None and context.journal_part is None:
        copies = JournalCopies(store.remote, store.root)
        await asyncio.to_thread(copying.enter_context, _copied.used(store.root, partial(_copy, copies)))
    try:
        with open_journal(context.journal) as journal:
            yield journal
    finally:
        await asyncio.to_thread(copying.close)


@contextmanager
def _copy(copies: JournalCopies) -> Iterator[None]:
    copies.take_over()
    copier = Copier(copies.hand_on)
    try:
        yield
    finally:
        copier.stop()
