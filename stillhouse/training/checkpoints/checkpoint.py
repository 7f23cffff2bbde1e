"""Checkpoints: everything needed to continue a training bit for bit, written whole or not at all.

`<folder>/step-<steps done>/`: `weights.safetensors` (what is trained), `optimizer.pt` (optimiser state and torch's
random states; tensors and plain values only), `state.json` (all else, with the digests of the two). A checkpoint is
filled under a temporary name, synced and renamed, so that a folder of that name is complete.
"""

import json
import logging
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stillhouse.errors import TrainingError
from stillhouse.store import file_sha256
from stillhouse.store.atomic import sync, unwritable, write_atomic
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)

_KEEP = 2


@dataclass(frozen=True, slots=True)
class RandomState:
    """State of every random generator of the process."""

    tensors: dict[str, Any]
    plain: JsonObject


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A training after `step` optimiser steps."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    random: RandomState
    identity: JsonObject
    """What the training depends on; a training with another identity must not continue it."""
    progress: JsonObject
    """Counters, metrics not yet written, the MLflow run: plain JSON."""


def random_state() -> RandomState:
    """The state of torch's, CUDA's, Python's and numpy's generators."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    keys = numpy_state["state"]["key"].tolist()
    tensors = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    return RandomState(
        tensors,
        {
            "python": random.getstate(),
            "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": keys}},
        },
    )


def restore_random_state(state: RandomState) -> None:
    """Puts every generator back."""
    torch.set_rng_state(state.tensors["torch"])
    if state.tensors["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state.tensors["cuda"])
    version, words, gauss = state.plain["python"]
    random.setstate((version, tuple(words), gauss))
    numpy_state = state.plain["numpy"]
    key = np.array(numpy_state["state"]["key"], dtype=np.uint32)
    np.random.set_state({**numpy_state, "state": {**numpy_state["state"], "key": key}})


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Adds `checkpoint` to `folder` and deletes all but the newest two; returns its path.

    Raises:
        StoreError: no space or no permission; the checkpoints that were there stand.
    """
    final = folder / f"step-{checkpoint.step:08d}"
    work = folder / f".{final.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_partial(folder)
        work.mkdir()
        save_file(checkpoint.weights, work / "weights.safetensors")
        torch.save({"optimizer": checkpoint.optimizer, "random": checkpoint.random.tensors}, work / "optimizer.pt")
        state = {
            "step": checkpoint.step,
            "identity": checkpoint.identity,
            "progress": checkpoint.progress,
            "random": checkpoint.random.plain,
            "sha256": {name: file_sha256(work / name) for name in ("weights.safetensors", "optimizer.pt")},
        }
        for path in work.iterdir():
            sync(path)
        write_atomic(work / "state.json", json.dumps(state).encode())
        if final.exists():
            shutil.rmtree(final)
        work.rename(final)
        sync(folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        # A full disk is a RuntimeError to torch.save and a SafetensorError to save_file.
        shutil.rmtree(work, ignore_errors=True)
        raise unwritable(final, error if isinstance(error, OSError) else OSError(str(error))) from error
    for old in _complete(folder)[_KEEP:]:
        shutil.rmtree(old)
    return final


def load_newest_checkpoint(folder: Path, identity: JsonObject) -> Checkpoint | None:
    """The newest checkpoint whose bytes are as they were written, or None when there is none.

    Raises:
        TrainingError: it belongs to a training with another identity; the differences are listed.
    """
    for path in _complete(folder):
        try:
            state = json.loads((path / "state.json").read_bytes())
            for name, expected in state["sha256"].items():
                if (seen := file_sha256(path / name)) != expected:
                    raise ValueError(f"{name} has sha256 {seen}, expected {expected}")
        except (OSError, ValueError) as error:
            logger.warning("checkpoint %s is damaged and left out: %s", path, error)
            continue
        _refuse_other_identity(path, state["identity"], identity)
        tensors = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True)
        return Checkpoint(
            step=state["step"],
            weights=load_file(path / "weights.safetensors"),
            optimizer=tensors["optimizer"],
            random=RandomState(tensors["random"], state["random"]),
            identity=state["identity"],
            progress=state["progress"],
        )
    return None


def _refuse_other_identity(path: Path, seen: JsonObject, expected: JsonObject) -> None:
    flat_seen, flat_expected = _flatten(seen), _flatten(expected)
    differences = [
        f"{key}: {flat_seen.get(key)!r} in the checkpoint, {flat_expected.get(key)!r} now"
        for key in sorted(flat_seen.keys() | flat_expected.keys())
        if flat_seen.get(key) != flat_expected.get(key)
    ]
    if differences:
        raise TrainingError(
            f"{path}: this checkpoint belongs to another training: {'; '.join(differences)}. Restore those values to "
            f"continue it, or delete {path.parent} to start anew"
        )


def _flatten(value: JsonObject, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, entry in value.items():
        if isinstance(entry, dict):
            flat |= _flatten(entry, f"{prefix}{key}.")
        else:
            flat[prefix + key] = entry
    return flat


def _complete(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


def _remove_partial(folder: Path) -> None:
    for leftover in folder.glob(".step-*.partial"):
        shutil.rmtree(leftover)
