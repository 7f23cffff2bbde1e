"""The work folder of one training: locked by one process at a time, and copied to the storage that machines share.

Each new checkpoint is copied with the metrics and batches that belong to it while training goes on. A lost machine
costs the work since the newest checkpoint that was copied. Free of torch.
"""

import fcntl
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError, TrainingError
from stillhouse.store import ArtifactStore
from stillhouse.store.snapshots import Snapshots
from stillhouse.training.loop.checkpoint_folder import saved_steps

_LOCK_POLL_S: Final = 0.2
_MIRROR_POLL_S: Final = 5.0
_CHECKPOINTS: Final = "checkpoints"
# What a training continues from; logs, tokens and served weights are made again.
_MIRRORED: Final = frozenset({_CHECKPOINTS, "metrics.jsonl", "generations.jsonl", "rollouts", "mlflow_run.json"})

logger = logging.getLogger(__name__)


@contextmanager
def exclusive(work_dir: Path, wait_s: float = 20.0) -> Iterator[None]:
    """Hold the folder's lock, which the system releases when the process dies, however it dies."""
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
                time.sleep(_LOCK_POLL_S)
        yield


@contextmanager
def mirrored(work_dir: Path, store: ArtifactStore, *, poll_s: float = _MIRROR_POLL_S) -> Iterator[Callable[[], None]]:
    """Copy each new checkpoint in `work_dir` to the storage that machines share, where there is one.

    At the start the folder is restored from the copies if they are further; where they cannot be reached, a StoreError
    is raised. A failed copy later is logged and tried again; it never ends a training.

    Yields:
        A function that ends the copying and removes the copies; call it once the student is safe.
    """
    if store.remote is None:
        yield lambda: None
        return

    def is_kept(path: Path) -> bool:
        # A leading dot marks a file or folder that is being written.
        is_unfinished = any(part.startswith(".") for part in path.parts)
        return path.parts[0] in _MIRRORED and not is_unfinished

    snapshots = Snapshots(
        store.remote,
        work_dir,
        work_dir.relative_to(store.root).as_posix(),
        is_kept=is_kept,
        is_fixed=lambda path: path.parts[0] == _CHECKPOINTS,
    )
    checkpoints, files = work_dir / _CHECKPOINTS, snapshots.files()
    copied = {Path(name).parts[1] for name in files if Path(name).parts[0] == _CHECKPOINTS}
    local = {path.name for path in checkpoints.glob("step-*")}
    # By name: step numbers are padded with zeros.
    if copied and max(copied) > max(local, default=""):
        snapshots.restore(files)
    copier = _Copier(snapshots, checkpoints, poll_s)
    try:
        yield copier.remove
    finally:
        copier.stop()


class _Copier:
    """A thread that takes a snapshot for each new checkpoint, and a last one when it is stopped."""

    def __init__(self, snapshots: Snapshots, checkpoints: Path, poll_s: float) -> None:
        self._snapshots, self._checkpoints, self._poll_s = snapshots, checkpoints, poll_s
        self._copied: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return once the newest checkpoint has been copied, or could not be."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            self._copy()

    def remove(self) -> None:
        """Stop and remove all copies; a failure to remove them is only logged."""
        self._stopped.set()
        self._thread.join()
        try:
            self._snapshots.remove()
        except StoreError as error:
            logger.warning("%s is no longer needed, but its copies stay: %s", self._checkpoints, error)

    def _run(self) -> None:
        while not self._stopped.wait(self._poll_s):
            self._copy()

    def _copy(self) -> None:
        newest = saved_steps(self._checkpoints)[:1]
        if newest == self._copied:
            return
        try:
            self._snapshots.take()
            self._copied = newest
        except FileNotFoundError:
            # A checkpoint was pruned meanwhile: there is a newer one.
            return
        except (StoreError, OSError) as error:
            logger.warning("checkpoint %s could not be copied: %s", self._checkpoints, error)
