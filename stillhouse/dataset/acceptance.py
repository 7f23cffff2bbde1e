"""Whether a trajectory passes the filters, told while the teacher is still being sampled."""

import asyncio
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from stillhouse.config import DatasetConfig
from stillhouse.dataset.labelling.inputs import LabelInput
from stillhouse.dataset.labelling.label import Labelling, labelled_rows
from stillhouse.types import PromptMetadata, Trajectory


class Acceptance(BaseModel):
    """What a trajectory has to pass. Duplicates, judges and choices among rows are known only once all is sampled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labelling: Labelling
    dataset: DatasetConfig
    max_tokens: int
    """Most student tokens of a row."""


class TrajectoryFilter:
    """Asked of each trajectory as it ends. Labels are made in a thread, for all that wait at a time.

    Args:
        acceptance: what is asked.
        metadata: by prompt id.
    """

    def __init__(self, acceptance: Acceptance, metadata: Mapping[str, PromptMetadata]) -> None:
        self._acceptance = acceptance
        self._metadata = metadata
        self._turn = asyncio.Lock()
        self._waiting: list[tuple[Trajectory, asyncio.Future[bool]]] = []

    async def accepts(self, trajectory: Trajectory) -> bool:
        """Whether `trajectory` passes; see `stillhouse.rollouts.plan.Accepts`."""
        verdict: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((trajectory, verdict))
        async with self._turn:
            if not verdict.done():
                batch, self._waiting = self._waiting, []
                passed = await asyncio.to_thread(self._pass, [one for one, _ in batch])
                for (_, asked), answer in zip(batch, passed, strict=True):
                    asked.set_result(answer)
        return await verdict

    def _pass(self, trajectories: Sequence[Trajectory]) -> list[bool]:
        # Imports pandas, which sampling without a target does not need.
        from stillhouse.dataset.select.filters import passes
        from stillhouse.dataset.select.labels import labels_of_rows

        acceptance = self._acceptance
        inputs = [LabelInput.of(one, self._metadata.get(one.prompt_id)) for one in trajectories]
        labels = labels_of_rows(labelled_rows(inputs, acceptance.labelling))
        return [bool(passed) for passed in passes(labels, acceptance.dataset, acceptance.max_tokens)]
