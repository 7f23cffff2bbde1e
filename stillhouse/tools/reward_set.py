"""The rewards of a run and how they score a trajectory.

A reward that could not be computed is None, never 0: a judge that is down says nothing about the answer.
"""

import asyncio
import inspect
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from stillhouse.config import ToolsConfig
from stillhouse.errors import FailureBudgetExceeded
from stillhouse.sandbox.client import JailFailed
from stillhouse.tools.context import explain
from stillhouse.tools.reward_process import RewardProcess, needs_main_thread
from stillhouse.tools.rewards import Reward, RewardArgs, checked_reward
from stillhouse.tools.running import TimeLimitReached, run_function
from stillhouse.tools.sandbox import Sandbox
from stillhouse.tools.user_file import load_decorated
from stillhouse.types import JsonObject, Message, PromptMetadata, StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class RewardScores:
    total: float | None
    """0 if a precondition gave 0; else the mean of the other rewards, or of the preconditions if there are no others;
    of rewards under rnow's decorator the sum of all. None (unverified) if one of these could not be computed, or there
    are no rewards."""
    values: dict[str, float | None]
    """Each reward that was run by name; None if it could not be computed."""
    errors: dict[str, str]
    """Why a reward could not be computed, by name."""


class RewardSet:
    """The rewards of a run, in this order but preconditions first; leaving the async block ends their processes.

    `timeout_s` is for rewards that set none; they see the variables of `environment` in `RewardArgs`. `file` holds them
    all, by which another process finds the async ones; None runs them here.
    """

    def __init__(
        self,
        rewards: Iterable[Reward],
        *,
        timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> None:
        self._rewards = sorted(rewards, key=lambda reward: not reward.is_precondition)
        self._timeout_s = timeout_s
        self._environment = dict(environment or {})
        self._sandbox = Sandbox(self._environment)
        self._process = None if file is None else RewardProcess(file)
        self._on_main_thread = {
            reward.name for reward in self._rewards if file is not None and inspect.iscoroutinefunction(reward.function)
        }
        self.failures = RewardFailures()
        """Those of all trajectories that were scored, but for rollouts that failed themselves."""

    @classmethod
    def from_config(cls, config: ToolsConfig) -> Self:
        """Return the rewards of `tools.rewards_file`; none if it is not set.

        Raise ConfigError if the file does not load, or has no function under `@reward`.
        """
        rewards: list[Reward] = []
        path = None if config.rewards_file is None else Path(config.rewards_file).expanduser().absolute()
        if path is not None:
            rewards = load_decorated(path, "tools.rewards_file", Reward, "reward", "scores a trajectory")
        environment = {name: os.environ[name] for name in config.environment if name in os.environ}
        return cls(rewards, timeout_s=config.timeout_s, environment=environment, file=path)

    @property
    def names(self) -> list[str]:
        return [reward.name for reward in self._rewards]

    async def score(self, trajectory: Trajectory, metadata: PromptMetadata | None) -> RewardScores:
        """Score a finished trajectory; a reward that fails is recorded and counted, and never raises here."""
        scores = await self._score(trajectory, metadata)
        # A rollout that failed left nothing to score.
        if trajectory.stop_reason is not StopReason.ERROR:
            self.failures.add(scores.errors)
        return scores

    async def _score(self, trajectory: Trajectory, metadata: PromptMetadata | None) -> RewardScores:
        about = metadata or PromptMetadata(trajectory.prompt_id, None, None, "", {})
        args = RewardArgs(
            metadata=about.metadata,
            expected_answer=about.expected_answer,
            tag=about.tag,
            stop_reason=trajectory.stop_reason,
            environment=self._environment,
            rollout_key=trajectory.rollout_key,
            prompt_id=trajectory.prompt_id,
            sample_index=trajectory.sample_index,
        )
        chosen, errors = self._chosen(args.metadata)
        values: dict[str, float | None] = dict.fromkeys(errors)
        for is_precondition in (True, False):
            rewards = [reward for reward in chosen if reward.is_precondition is is_precondition]
            outcomes = await asyncio.gather(*(self._value(reward, args, trajectory.messages) for reward in rewards))
            for reward, outcome in zip(rewards, outcomes, strict=True):
                if isinstance(outcome, str):
                    errors[reward.name] = outcome
                values[reward.name] = None if isinstance(outcome, str) else outcome
            if is_precondition and 0 in values.values():
                return RewardScores(0.0, values, errors)
        return RewardScores(_total(chosen, values), values, errors)

    def _chosen(self, metadata: JsonObject) -> tuple[list[Reward], dict[str, str]]:
        """Return the rewards of a row, which names its own among rnow's, and the errors of names without a function."""
        names = metadata.get("rewards")
        if not names or not isinstance(names, list) or not any(reward.is_of_rnow for reward in self._rewards):
            return self._rewards, {}
        missing = f"the prompt's row names it in `rewards`, and there are: {', '.join(self.names)}"
        return (
            [reward for reward in self._rewards if reward.name in names],
            {str(name): missing for name in names if name not in self.names},
        )

    async def _value(self, reward: Reward, args: RewardArgs, messages: list[Message]) -> float | str:
        """Return the reward's value, or why there is none."""
        timeout_s = reward.timeout_s or self._timeout_s
        try:
            async with reward.concurrency.slot():
                return await self._run(reward, args, messages, timeout_s)
        except TimeLimitReached:
            return f"did not return within {timeout_s:g} s"
        except JailFailed as error:
            return str(error)
        except Exception as error:
            return explain(error)

    async def _run(self, reward: Reward, args: RewardArgs, messages: list[Message], timeout_s: float) -> float:
        if reward.sandboxed is None and reward.name not in self._on_main_thread:
            names = inspect.signature(reward.function).parameters
            kwargs = dict(zip(names, reward.arguments(args, messages), strict=True))
            try:
                return await run_function(reward.function, kwargs, timeout_s, checked_reward)
            except ValueError as error:
                if self._process is None or not needs_main_thread(error):
                    raise
                self._on_main_thread.add(reward.name)
        payload = {"args": asdict(args), "messages": messages}
        if reward.sandboxed is not None:
            return float(await self._sandbox.call(reward.sandboxed, payload, timeout_s))
        assert self._process is not None
        return await self._process.call(reward.name, payload, timeout_s)

    async def __aenter__(self) -> Self:
        await self._sandbox.load(reward.sandboxed for reward in self._rewards)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._sandbox.close()
        if self._process is not None:
            await self._process.close()


def _total(rewards: Sequence[Reward], values: Mapping[str, float | None]) -> float | None:
    preconditions = [values[reward.name] for reward in rewards if reward.is_precondition]
    others = [values[reward.name] for reward in rewards if not reward.is_precondition]
    adds_up = any(reward.is_of_rnow for reward in rewards)
    counted = [*preconditions, *others] if adds_up else others or preconditions
    known = [value for value in counted if value is not None]
    if not counted or None in values.values():
        return None
    return math.fsum(known) if adds_up else math.fsum(known) / len(known)


@dataclass(slots=True)
class RewardFailures:
    """Counts the trajectories of which a reward could not be computed."""

    num_scored: int = 0
    num_failed: int = 0
    """Trajectories with at least one error."""
    num_errors: Counter[str] = field(default_factory=Counter)
    """By reward."""
    first_errors: dict[str, str] = field(default_factory=dict)
    """By reward."""

    def add(self, errors: Mapping[str, str]) -> None:
        """Count a trajectory with the errors of its rewards by name."""
        self.num_scored += 1
        self.num_failed += bool(errors)
        self.num_errors.update(errors.keys())
        for name, error in errors.items():
            self.first_errors.setdefault(name, error)

    def check(self, file: str | None, budget: float) -> None:
        """Raise FailureBudgetExceeded if more than the share `budget` of the trajectories went without a reward."""
        if self.num_failed <= budget * self.num_scored:
            return
        ((name, count),) = self.num_errors.most_common(1)
        raise FailureBudgetExceeded(
            f"{file}: the rewards of {self.num_failed} of {self.num_scored} trajectories could not be computed "
            f"({self.num_failed / self.num_scored:.0%}), more than runtime.failure_budget = {budget:.0%}. "
            f"{name} failed {count} times, first: {self.first_errors[name]}. Mend the function, or what it needs, and "
            "run the same command again: what was sampled is kept. Raise the budget if so many failures are normal",
            code="rewards",
        )
