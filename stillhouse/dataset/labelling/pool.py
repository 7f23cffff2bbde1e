"""Labelling in processes of their own."""

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from stillhouse.dataset.labelling.label import Labelling, label_shard
from stillhouse.errors import StillhouseError
from stillhouse.processes.exit import exit_with_parent
from stillhouse.store.records import read_metadata, read_trajectories

_pool: Final[ContextVar[Executor | None]] = ContextVar("_pool", default=None)


def label_file(trajectories: Path, metadata: Path, labelling: Labelling, folder: Path) -> int:
    """`label_shard` over files; the number of rows.

    Inside `label_processes` one of its processes does the work, and this thread waits.

    Raises:
        StillhouseError: as `label_shard`, in whichever process; or that process was killed.
    """
    pool = _pool.get()
    if pool is None:
        return label_shard(read_trajectories(trajectories), read_metadata(metadata), labelling, folder)
    try:
        return pool.submit(label_file, trajectories, metadata, labelling, folder).result()
    except BrokenProcessPool as error:
        raise StillhouseError(
            f"a process was killed while it labelled {trajectories} or a file beside it, as happens where memory runs "
            "out. Set runtime.label_processes lower and run the same command again: finished shards are kept"
        ) from error


@contextmanager
def label_processes(num_processes: int) -> Iterator[Executor]:
    """Processes for `label_file`, which end with the block and with this process, however it ends."""
    pool = ProcessPoolExecutor(
        num_processes,
        # Forked from a process with threads, a child may inherit a lock that nobody will release.
        mp_context=get_context("spawn"),
        initializer=exit_with_parent,
        initargs=(os.getpid(),),
    )
    token = _pool.set(pool)
    try:
        yield pool
    finally:
        _pool.reset(token)
        pool.shutdown(wait=True, cancel_futures=True)
