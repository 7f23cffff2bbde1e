"""The user's rewards as scores of a dataset."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stillhouse.config import ToolsConfig
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.functions import FailureLog
from stillhouse.errors import ConfigError
from stillhouse.processes.loop_thread import LoopThread
from stillhouse.tools.reward_set import RewardFailures, RewardScores, RewardSet

_MAX_CONCURRENT: Final = 32
"""Trajectories scored at once: enough for rewards that wait for a judge, few enough threads for those that compute."""


class RewardLabels:
    """The column scores, by the functions of `tools.rewards_file`: `reward`, the total, and `reward/NAME` for each.

    A score is None if it could not be computed, or was skipped since a precondition gave 0. May be called with or
    without a running event loop. The rewards' sandbox ends with `close` or this process. Raises
    ConfigError if no file is named, it does not load, or it has no function under `@reward`.
    """

    def __init__(self, tools: ToolsConfig) -> None:
        if tools.rewards_file is None:
            raise ConfigError(
                "dataset.labels.measure names rewards, or filters or selection go by the score `reward`, but "
                "tools.rewards_file names no file: name one, or leave them out"
            )
        self._rewards = RewardSet.from_config(tools)
        self._loop = LoopThread("reward labels")
        self._failure_log = FailureLog(tools.rewards_file)

    def __call__(self, inputs: Sequence[LabelInput]) -> Mapping[str, Sequence[Any]]:
        scored = self._loop.run_blocking(self._score_all(inputs))
        for item, rewards in zip(inputs, scored, strict=True):
            for name, problem in rewards.errors.items():
                self._failure_log.add(name, item.trajectory.rollout_key, problem)
        names = self._rewards.names
        parts = [{f"reward/{name}": rewards.values.get(name) for name in names} for rewards in scored]
        return {"scores": [{"reward": rewards.total, **of} for rewards, of in zip(scored, parts, strict=True)]}

    def count_anew(self) -> RewardFailures:
        """Return the failures of the trajectories that are scored from now on."""
        self._rewards.failures = RewardFailures()
        return self._rewards.failures

    def close(self) -> None:
        """End the sandbox; a later call starts another."""
        if self._loop.is_running:
            self._loop.run_blocking(self._rewards.__aexit__())
            self._loop.close()

    async def _score_all(self, inputs: Sequence[LabelInput]) -> list[RewardScores]:
        slots = asyncio.Semaphore(_MAX_CONCURRENT)

        async def score(item: LabelInput) -> RewardScores:
            async with slots:
                return await self._rewards.score(item.trajectory, item.metadata)

        return await asyncio.gather(*map(score, inputs))
