"""The work folder of one training: locked by one process at a time, and copied to the storage that machines share.

Each new checkpoint is copied with the metrics and batches that belong to it while training goes on. A lost machine
costs the work since the newest checkpoint that was copied. Free of torch.
"""

import fcntl
import logging
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError, TrainingError
from stillhouse.store import ArtifactStore
from stillhouse.store.snapshots import Snapshots
from stillhouse.training.loop.checkpoint_folder import saved_steps

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


_CHECKPOINTS: Final = "checkpoints"
# What a training continues from; logs, tokens and served weights are made again.
_KEPT: Final = frozenset({_CHECKPOINTS, "metrics.jsonl", "generations.jsonl", "rollouts", "mlflow_run.json"})
_LOOK_S: Final = 5.0

logger = logging.getLogger(__name__)


@contextmanager
def mirrored(
    work_dir: Path, store: ArtifactStore, *, leave_out: Set[str] = frozenset(), look_s: float = _LOOK_S
) -> Iterator[Callable[[], None]]:
    """Copies each new checkpoint in `work_dir` to the storage that machines share, where there is one.

    At the start, the folder gets what is kept there if that is further. A copy that fails is told of and tried again;
    it never ends a training.

    Args:
        work_dir: of one training, below the store's folder.
        store: of the run.
        leave_out: files that mean nothing on another machine.
        look_s: seconds between two looks for a new checkpoint.

    Yields:
        Ends the copying and removes the copies; to be called once the student is safe.

    Raises:
        StoreError: the storage cannot be reached at the start.
    """
    if store.remote is None:
        yield lambda: None
        return
    snapshots = Snapshots(
        store.remote,
        work_dir,
        work_dir.relative_to(store.root).as_posix(),
        is_kept=lambda path: _is_kept(path) and path.name not in leave_out,
        is_fixed=lambda path: path.parts[0] == _CHECKPOINTS,
    )
    _go_on(snapshots, work_dir / _CHECKPOINTS)
    copier = _Copier(snapshots, work_dir / _CHECKPOINTS, look_s)
    try:
        yield copier.remove
    finally:
        copier.stop()


def _is_kept(path: Path) -> bool:
    # A leading dot is that of a file or folder which is being written.
    return path.parts[0] in _KEPT and not any(part.startswith(".") for part in path.parts)


def _go_on(snapshots: Snapshots, checkpoints: Path) -> None:
    files = snapshots.files()
    kept = {Path(name).parts[1] for name in files if Path(name).parts[0] == _CHECKPOINTS}
    own = {path.name for path in checkpoints.glob("step-*")}
    # By name: they are padded with zeros.
    if kept and max(kept) > max(own, default=""):
        snapshots.restore(files)


class _Copier:
    """A thread that takes a snapshot for each new checkpoint, and a last one when it is stopped."""

    def __init__(self, snapshots: Snapshots, checkpoints: Path, look_s: float) -> None:
        self._snapshots, self._checkpoints, self._look_s = snapshots, checkpoints, look_s
        self._taken: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns once the newest checkpoint is copied, or could not be."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            self._look()

    def remove(self) -> None:
        """Stops, and removes all copies; those that cannot be removed are told of."""
        self._stopped.set()
        self._thread.join()
        try:
            self._snapshots.remove()
        except StoreError as error:
            logger.warning("%s has served, but its copies stay: %s", self._checkpoints, error)

    def _run(self) -> None:
        while not self._stopped.wait(self._look_s):
            self._look()

    def _look(self) -> None:
        newest = saved_steps(self._checkpoints)[:1]
        if newest == self._taken:
            return
        try:
            self._snapshots.take()
            self._taken = newest
        except FileNotFoundError:
            # A checkpoint was pruned meanwhile: there is a newer one.
            return
        except (StoreError, OSError) as error:
            logger.warning("checkpoint %s could not be copied: %s", self._checkpoints, error)
