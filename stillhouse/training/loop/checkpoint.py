"""Checkpoints: everything needed to continue a training bit for bit, written whole or not at all.

`<folder>/step-<steps done>/`: `weights.safetensors` (what is trained), `average.safetensors` (its running mean, where
one is kept), `optimizer.pt` (tensors and plain values only), `state.json` (all else) and `digests.json` (of the other
files, to detect damage). A checkpoint is filled under a temporary name, synced and renamed, so that a folder of that
name is complete. Of several ranks the first one writes, and all may read.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._pytree import tree_leaves
from xxhash import xxh3_128

from stillhouse.errors import StoreError
from stillhouse.store.atomic import replaced_folder
from stillhouse.training.loop.checkpoint_folder import checkpoint_path, prune, require_same_identity, saved_steps
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)

KEPT: Final = 2
"""Newest checkpoints to keep, in case the newest is damaged."""
_WEIGHTS: Final = "weights.safetensors"
_AVERAGE: Final = "average.safetensors"
_OPTIMIZER: Final = "optimizer.pt"
_STATE: Final = "state.json"
_DIGESTS: Final = "digests.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A training after `step` optimiser steps. Tensors are unsharded, on the CPU and contiguous."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    random: Sequence[JsonObject]
    """`random_state()` of each rank, in their order."""
    identity: JsonObject
    """Everything the training depends on; a training with another identity must not continue it."""
    progress: JsonObject
    """Counters, metrics not yet written, the best validation, the MLflow run: plain JSON."""
    average: dict[str, Tensor] | None = None
    """The running mean of the weights; None where none is kept."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int = KEPT, best_step: int | None) -> Path:
    """Add `checkpoint` to `folder`, keep the newest `keep` and the one of `best_step`, and return its path.

    Raises:
        StoreError: no space or no permission; the earlier checkpoints are still there.
    """
    path = checkpoint_path(folder, checkpoint.step)
    with replaced_folder(path) as work:
        try:
            _fill(work, checkpoint)
        # save_file reports a full disk as a SafetensorError, torch.save as a RuntimeError about offsets in the file.
        except (OSError, RuntimeError, SafetensorError) as error:
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            parts = tree_leaves([checkpoint.weights, checkpoint.average, checkpoint.optimizer])
            num_bytes = sum(part.nbytes for part in parts if isinstance(part, Tensor))
            raise OSError(f"{reason}; it takes {num_bytes / 2**30:.2f} GiB") from error
    prune(folder, saved=checkpoint.step, keep=keep, best_step=best_step)
    return path


def load_newest_checkpoint(folder: Path, identity: JsonObject) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, or None where there is none.

    Raises:
        TrainingError: it belongs to a training with another identity; the differences are listed.
    """
    for step in saved_steps(folder):
        path = checkpoint_path(folder, step)
        try:
            verify_checkpoint(path)
        except (OSError, ValueError) as error:
            logger.warning("checkpoint %s is damaged and ignored: %s", path, error)
            continue
        state = json.loads((path / _STATE).read_bytes())
        require_same_identity(path, state["identity"], identity)
        return Checkpoint(
            weights=load_file(path / _WEIGHTS),
            optimizer=torch.load(path / _OPTIMIZER, map_location="cpu", weights_only=True),
            average=load_file(path / _AVERAGE) if (path / _AVERAGE).exists() else None,
            **state,
        )
    return None


def load_weights(folder: Path, step: int) -> dict[str, Tensor]:
    """Return the weights after `step` steps, or their running mean where one is kept."""
    path = checkpoint_path(folder, step)
    try:
        verify_checkpoint(path)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"checkpoint {path}: cannot be read: {error}. It holds the best weights of the training; delete {folder} "
            "and run the same command again to train anew"
        ) from error
    average = path / _AVERAGE
    return load_file(average if average.exists() else path / _WEIGHTS)


def _fill(work: Path, checkpoint: Checkpoint) -> None:
    save_file(checkpoint.weights, work / _WEIGHTS)
    if checkpoint.average is not None:
        save_file(checkpoint.average, work / _AVERAGE)
    with (work / _OPTIMIZER).open("wb") as file:
        torch.save(checkpoint.optimizer, file)
    state = {name: getattr(checkpoint, name) for name in ("step", "identity", "progress", "random")}
    (work / _STATE).write_text(json.dumps(state))
    (work / _DIGESTS).write_text(json.dumps({path.name: _digest(path) for path in sorted(work.iterdir())}))


def verify_checkpoint(path: Path) -> None:
    """Raise an OSError or a ValueError where the files of the checkpoint at `path` are not what was written."""
    digests = json.loads((path / _DIGESTS).read_bytes())
    written = {file.name for file in path.iterdir()} | {_WEIGHTS, _OPTIMIZER, _STATE}
    if not isinstance(digests, dict) or digests.keys() != written - {_DIGESTS}:
        raise ValueError(f"{_DIGESTS} does not name the checkpoint's files")
    for name, expected in digests.items():
        if (seen := _digest(path / name)) != expected:
            raise ValueError(f"{name} has digest {seen}, expected {expected}")


def _digest(path: Path) -> str:
    """Return the XXH3 digest of a file: ten times as fast as SHA-256, and faster than the disk."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxh3_128).hexdigest()  # type: ignore[arg-type]
