"""The checkpoints in a folder: their steps, their pruning, and the identity of their training. Free of torch."""

import logging
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from stillhouse.errors import TrainingError
from stillhouse.store.atomic import temporary
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)

_PREFIX: Final = "step-"


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"{_PREFIX}{step:08d}"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in `folder`, newest first."""
    numbers = [path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*")]
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


def prune(folder: Path, *, saved: int, keep: int, best_step: int | None) -> None:
    """Delete all checkpoints but the newest `keep` up to step `saved`, the last one written, and `best_step`.

    Checkpoints of later steps were damaged, so that training went back to an earlier one.
    """
    steps = saved_steps(folder)
    newest = [step for step in steps if step <= saved][:keep]
    for path in (checkpoint_path(folder, step) for step in steps if step not in newest and step != best_step):
        try:
            # Under another name, so that a folder half deleted is never taken for a checkpoint.
            with temporary(path, partial(os.rename, path)):
                pass
        except OSError as error:
            logger.warning("checkpoint %s is no longer needed and cannot be deleted: %s", path, error)


def require_same_identity(path: Path, seen: JsonObject, expected: JsonObject) -> None:
    """Raise a `TrainingError` that lists the differences where the checkpoint at `path` is of another training."""
    flat_seen, flat_expected = _flatten(seen), _flatten(expected)
    differences = [
        f"{key}: {flat_seen.get(key)!r} in the checkpoint, {flat_expected.get(key)!r} now"
        for key in sorted(flat_seen.keys() | flat_expected.keys())
        if flat_seen.get(key) != flat_expected.get(key)
    ]
    if differences:
        raise TrainingError(
            f"{path}: this checkpoint belongs to another training: {'; '.join(differences)}. Restore those values to "
            f"continue it, or delete {path.parent} to start anew",
            code="other-training",
        )


def _flatten(value: JsonObject, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, entry in value.items():
        if isinstance(entry, dict):
            flat |= _flatten(entry, f"{prefix}{key}.")
        else:
            flat[prefix + key] = entry
    return flat
