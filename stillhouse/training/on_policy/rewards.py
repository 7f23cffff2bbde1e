"""Rewards of sampled trajectories: verification and the user's reward functions.

A user's reward may be slow or fail. A reward that fails is left out and counted, and never counts as 0; the training
stops if too many fail.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Self

from stillhouse.config import ToolsConfig
from stillhouse.tools.reward_set import RewardSet
from stillhouse.tools.running import submit, wait_for
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import PromptMetadata
from stillhouse.verification import examine

logger = logging.getLogger(__name__)

CORRECT: Final = "correct"
"""Name of the verification's value, unless a user's reward has that name."""


@dataclass(frozen=True, slots=True)
class TrajectoryReward:
    """The reward of one trajectory."""

    total: float | None
    """`RewardScores.total` of the user's rewards or, without any, 1 for a right and 0 for a wrong answer. None if
    unverified."""
    parts: dict[str, float] = field(default_factory=dict)
    """Each reward that could be computed, and `correct` if the answer could be verified."""
    errors: dict[str, str] = field(default_factory=dict)
    """Why a reward could not be computed."""


class RewardScorer:
    """Verification and the rewards of `tools.rewards_file`. As a context manager it closes their sandbox.

    `failure_budget` is the share of trajectories whose rewards may fail. Raises ConfigError if the file does not load,
    or has no function under `@reward`.
    """

    def __init__(self, config: ToolsConfig, failure_budget: float = 1.0) -> None:
        self._file = config.rewards_file
        self._failure_budget = failure_budget
        self._rewards = RewardSet.from_config(config)
        self._warned: set[str] = set()

    def start(
        self, trajectories: Sequence[SampledTrajectory], metadata: Mapping[str, PromptMetadata]
    ) -> Future[list[TrajectoryReward]]:
        """Score finished trajectories concurrently in the background; metadata is by prompt id and may lack any."""
        return submit(self._score(trajectories, metadata))

    def score(
        self, trajectories: Sequence[SampledTrajectory], metadata: Mapping[str, PromptMetadata]
    ) -> list[TrajectoryReward]:
        """Score as `start` does, and wait."""
        return self.start(trajectories, metadata).result()

    @property
    def num_errors(self) -> int:
        """Return the number of rewards that could not be computed so far."""
        return self._rewards.failures.num_errors.total()

    def check_failures(self) -> None:
        """Raise FailureBudgetExceeded if too many went without a reward, of whole batches, since a few say little."""
        self._rewards.failures.check(self._file, self._failure_budget)

    async def _score(
        self, trajectories: Sequence[SampledTrajectory], metadata: Mapping[str, PromptMetadata]
    ) -> list[TrajectoryReward]:
        return await asyncio.gather(*(self._of(one, metadata.get(one.prompt_id)) for one in trajectories))

    async def _of(self, sampled: SampledTrajectory, metadata: PromptMetadata | None) -> TrajectoryReward:
        # In a thread: a verifier may run code for seconds.
        verdict = (await asyncio.to_thread(examine, sampled.messages, sampled.stop_reason, metadata)).verified
        parts = {} if verdict is None else {CORRECT: float(verdict)}
        if not self._rewards.names:
            return TrajectoryReward(parts.get(CORRECT), parts)
        rewards = await self._rewards.score(sampled, metadata)
        parts |= {name: value for name, value in rewards.values.items() if value is not None}
        # Once for each; a metric counts the failures.
        for name, error in rewards.errors.items():
            if name not in self._warned:
                self._warned.add(name)
                logger.warning("reward %s could not be computed, which counts as no reward, not as 0: %s", name, error)
        return TrajectoryReward(rewards.total, parts, rewards.errors)

    def __enter__(self) -> Self:
        wait_for(self._rewards.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        wait_for(self._rewards.__aexit__(*exception))
