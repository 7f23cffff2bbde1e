"""Labelling in processes of their own, one for each CPU core."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from stillhouse.dataset.labelling.label import Labelling, label_shard
from stillhouse.store.records import read_metadata, read_trajectories

_LOOK_S: Final = 1.0


def label_file(trajectories: Path, metadata: Path, labelling: Labelling, folder: Path) -> int:
    """`label_shard` over files, for another process; the number of rows."""
    return label_shard(read_trajectories(trajectories), read_metadata(metadata), labelling, folder)


@contextmanager
def label_processes(num_processes: int | None) -> Iterator[Executor]:
    """Processes for `label_file`, which end with the block and with this process, however it ends.

    Args:
        num_processes: how many; None takes one for each CPU core.
    """
    pool = ProcessPoolExecutor(
        num_processes or os.cpu_count(),
        # Forked from a process with threads, a child may inherit a lock that nobody will release.
        mp_context=get_context("spawn"),
        initializer=_die_with,
        initargs=(os.getpid(),),
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _die_with(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="die-with-parent", daemon=True).start()
