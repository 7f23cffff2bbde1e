"""Filters trajectories while the teacher is still being sampled."""

import asyncio
from collections.abc import Mapping, Sequence

from stillhouse.config import DatasetConfig
from stillhouse.config.section import Section
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.label import Labelling, labelled_rows
from stillhouse.types import PromptMetadata, Trajectory


class Acceptance(Section):
    """Filters that can run while sampling; duplicates, judges and choices among rows need all trajectories."""

    labelling: Labelling
    dataset: DatasetConfig
    max_tokens: int | None
    """Maximum student tokens of a row; None if rows are not rendered."""


class TrajectoryFilter:
    """Filters each trajectory as it ends. Waiting trajectories are labelled as one batch, in a thread."""

    def __init__(self, acceptance: Acceptance, metadata: Mapping[str, PromptMetadata]) -> None:
        self._acceptance = acceptance
        self._metadata = metadata
        self._lock = asyncio.Lock()
        self._waiting: list[tuple[Trajectory, asyncio.Future[bool]]] = []

    async def accepts(self, trajectory: Trajectory) -> bool:
        """Return whether `trajectory` passes; see `stillhouse.rollouts.plan.Accepts`."""
        verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((trajectory, verdict))
        async with self._lock:
            if not verdict.done():
                batch, self._waiting = self._waiting, []
                passed = await asyncio.to_thread(self._filter, [waiting for waiting, _ in batch])
                for (_, future), accepted in zip(batch, passed, strict=True):
                    future.set_result(accepted)
        return await verdict

    def _filter(self, trajectories: Sequence[Trajectory]) -> list[bool]:
        # Imports pandas, which sampling without a row target does not need.
        from stillhouse.dataset.select.filters import passes

        acceptance = self._acceptance
        inputs = [LabelInput.of(trajectory, self._metadata.get(trajectory.prompt_id)) for trajectory in trajectories]
        return passes(labelled_rows(inputs, acceptance.labelling), acceptance.dataset, acceptance.max_tokens)
