"""Groups of trajectories that have ended while others of their batch are still sampled, kept on disk.

Where sampling again would not give the same, or costs money, what has ended must not be sampled a second time. In one
process on a CPU nothing is kept: rows that decode together round together, so that only the whole batch over again has
the bits of an uninterrupted training.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from stillhouse.errors import StoreError
from stillhouse.store.atomic import write_atomic
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.on_policy.trajectories import SampledTrajectory
from stillhouse.types import Prompt, StopReason

_STORED = tuple(one.name for one in fields(SampledTrajectory) if one.name != "toolbox")


class EndedGroups:
    """The groups of one batch that have ended, a file for each.

    Args:
        folder: of this batch alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_batch(cls, folder: Path, index: int) -> Self:
        """Those of batch `index`, beside the batches in `folder`."""
        return cls(folder / f"groups-{index:08d}")

    def add(self, group: Sequence[SampledTrajectory]) -> None:
        """Keeps the trajectories of a prompt, all of which have ended.

        Raises:
            StoreError: no space or no permission.
        """
        rows = [{name: getattr(one, name) for name in _STORED} for one in group]
        write_atomic(self._folder / f"{group[0].prompt_id}.json", json.dumps(rows).encode())

    def load(self, prompts: Sequence[Prompt], toolbox: Toolbox) -> dict[str, list[SampledTrajectory]]:
        """The groups that are kept, by prompt id.

        Raises:
            StoreError: one is damaged.
        """
        paths = ((prompt, self._folder / f"{prompt.id}.json") for prompt in prompts)
        return {prompt.id: _read(path, toolbox.select(prompt.tools)) for prompt, path in paths if path.exists()}

    def forget(self) -> None:
        """Deletes all of them: the batch is whole, and kept as such."""
        for path in self._folder.glob("*.json"):
            path.unlink()
        if self._folder.exists():
            self._folder.rmdir()


def _read(path: Path, toolbox: Toolbox) -> list[SampledTrajectory]:
    try:
        return [_trajectory(row, toolbox) for row in json.loads(path.read_bytes())]
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{path}: not a group of trajectories: {error}. Delete it, and its prompt is sampled again"
        ) from error


def _trajectory(row: Mapping[str, Any], toolbox: Toolbox) -> SampledTrajectory:
    return SampledTrajectory(**{**row, "stop_reason": StopReason(row["stop_reason"]), "toolbox": toolbox})
