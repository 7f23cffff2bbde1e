"""Which checkpoints a folder holds, and which of them have served."""

import logging
import os
from functools import partial
from pathlib import Path
from typing import Final

from stillhouse.store.temporary import temporary

logger = logging.getLogger(__name__)

_PREFIX: Final = "step-"


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` is."""
    return folder / f"{_PREFIX}{step:08d}"


def saved_steps(folder: Path) -> list[int]:
    """The steps that `folder` has a checkpoint of, newest first."""
    numbers = [path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*")]
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


def prune(folder: Path, *, saved: int, keep: int, best_step: int | None) -> None:
    """Deletes all checkpoints but the newest `keep`, that of `saved` among them, and that of `best_step`.

    Those of later steps than `saved`, which was written last, go too: they were damaged, so that training went back to
    an earlier one.
    """
    steps = saved_steps(folder)
    newest = [step for step in steps if step <= saved][:keep]
    for step in steps:
        if step not in newest and step != best_step:
            _delete(checkpoint_path(folder, step))


def _delete(path: Path) -> None:
    try:
        # Under another name, so that a folder half deleted is never taken for a checkpoint.
        with temporary(path, partial(os.rename, path)):
            pass
    except OSError as error:
        logger.warning("checkpoint %s has served and cannot be deleted: %s", path, error)
