"""Finished groups of a batch that is still being sampled, kept on disk so that a restart does not sample them again.

Not used for sampling in this process on a CPU: rows that decode together round together, so that only sampling the
whole batch again gives the bits of an uninterrupted training.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from stillhouse.errors import StoreError
from stillhouse.store.atomic import write_atomic
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject, Prompt, StopReason, Turn


class FinishedGroups:
    """The finished groups of batch `index`, a file for each, in `folder`."""

    def __init__(self, folder: Path, index: int) -> None:
        # No folder of their own: nobody could remove it while another thread adds a group.
        self._folder, self._prefix = folder, f"groups-{index:08d}-"

    def add(self, group: Sequence[SampledTrajectory]) -> None:
        """Store the finished trajectories of one prompt."""
        rows = json.dumps([asdict(trajectory) for trajectory in group], default=np.ndarray.tolist)
        write_atomic(self._path(group[0].prompt_id), rows.encode())

    def load(self, prompts: Sequence[Prompt]) -> dict[str, list[SampledTrajectory]]:
        """Return the stored groups, by prompt id; raise StoreError if one is damaged."""
        paths = ((prompt, self._path(prompt.id)) for prompt in prompts)
        return {prompt.id: _read(path) for prompt, path in paths if path.exists()}

    def forget(self, prompt_id: str = "*") -> None:
        """Delete them, or one; called once the whole batch is on disk."""
        for path in self._folder.glob(self._path(prompt_id).name):
            path.unlink()

    def _path(self, prompt_id: str) -> Path:
        return self._folder / f"{self._prefix}{prompt_id}.json"


def batches_with_groups(folder: Path) -> list[int]:
    """Return the batches of which there are finished groups in `folder`."""
    return sorted({int(path.name.split("-")[1]) for path in folder.glob("groups-*.json")})


def _read(path: Path) -> list[SampledTrajectory]:
    try:
        return [_trajectory(row) for row in json.loads(path.read_bytes())]
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{path}: not a group of trajectories: {error}. Delete it, and its prompt is sampled again"
        ) from error


def _trajectory(row: JsonObject) -> SampledTrajectory:
    turns = [Turn(**turn) for turn in row["turns"]]
    best_NK = (ids := row.get("best_ids_NK")) and np.array(ids, np.int32)
    read = {"turns": turns, "stop_reason": StopReason(row["stop_reason"]), "best_ids_NK": best_NK}
    return SampledTrajectory(**{**row, **read})
