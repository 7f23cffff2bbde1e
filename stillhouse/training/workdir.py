"""The work folder of one training belongs to one process at a time."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stillhouse.errors import TrainingError

_POLL_S = 0.2


@contextmanager
def exclusive(work_dir: Path, wait_s: float = 20.0) -> Iterator[None]:
    """Holds the folder's lock; the system lets go of it when the process dies, however it dies.

    Args:
        work_dir: made if it is not there.
        wait_s: how long to wait for another process, which may be one just killed.

    Raises:
        TrainingError: another process still holds it after `wait_s` seconds.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    with (work_dir / "lock").open("a") as file:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TrainingError(
                        f"{work_dir}: another process is running this training; wait for it or stop it"
                    ) from None
                time.sleep(_POLL_S)
        yield
