"""The user's rewards as scores of a dataset."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from stillhouse.config import ToolsConfig
from stillhouse.dataset.labelling.functions import Failures
from stillhouse.dataset.labelling.subject import Subject
from stillhouse.errors import ConfigError
from stillhouse.tools.loop_thread import LoopThread
from stillhouse.tools.reward_set import RewardScores, RewardSet

_AT_ONCE: Final = 32
"""Trajectories scored side by side: enough for rewards that wait for a judge, few enough threads for those that
compute."""


class RewardLabels:
    """The column scores, by the functions of `tools.rewards_file`: `reward`, the total, and `reward/NAME` for each.

    A score is None where it could not be computed, or was not since a precondition gave 0. Callers need no event loop,
    and may have one. As a context manager it ends the rewards' sandbox with the block; without one the sandbox ends
    with `close` or this process.

    Args:
        tools: where the rewards are, and what they may see.

    Raises:
        ConfigError: there is no file, it does not load, or it has no function under `@reward`.
    """

    def __init__(self, tools: ToolsConfig) -> None:
        if tools.rewards_file is None:
            raise ConfigError(
                "dataset.labels.rewards is on, but tools.rewards_file names no file: name one, or switch it off"
            )
        self._book = RewardSet.from_config(tools)
        self._loop = LoopThread("reward labels")
        self._failures = Failures(tools.rewards_file)

    def __call__(self, subjects: Sequence[Subject]) -> Mapping[str, Sequence[Any]]:
        """The column, a dict for each subject."""
        scored = self._loop.run_blocking(self._scored(subjects))
        for subject, rewards in zip(subjects, scored, strict=True):
            for name, problem in rewards.errors.items():
                self._failures.add(name, subject.trajectory.rollout_key, problem)
        return {"scores": [self._scores(rewards) for rewards in scored]}

    def close(self) -> None:
        """Ends the sandbox; a later call starts another."""
        if self._loop.is_running:
            self._loop.run_blocking(self._book.__aexit__())
            self._loop.close()

    def __enter__(self) -> Self:
        try:
            self._loop.run_blocking(self._book.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _scores(self, rewards: RewardScores) -> dict[str, float | None]:
        parts = {f"reward/{name}": rewards.values.get(name) for name in self._book.names}
        return {"reward": rewards.total, **parts}

    async def _scored(self, subjects: Sequence[Subject]) -> list[RewardScores]:
        places = asyncio.Semaphore(_AT_ONCE)

        async def score(subject: Subject) -> RewardScores:
            async with places:
                return await self._book.score(subject.trajectory, subject.metadata)

        return await asyncio.gather(*(score(one) for one in subjects))
