"""A training's work folder on object storage, so that another machine goes on from where a lost one was. Free of torch.

Each new checkpoint is copied there with the metrics and batches that belong to it, while the training goes on: what a
lost machine takes with it is the work since the newest checkpoint that had time to get there.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError
from stillhouse.store import ArtifactStore
from stillhouse.store.snapshots import Snapshots
from stillhouse.training.loop.checkpoints.pruning import saved_steps

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
