"""The rewards of a run and how they score a trajectory.

A reward that could not be computed is None, never 0: that a judge was down says nothing about the answer.
"""

import asyncio
import inspect
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.context import ToolError
from stillhouse.tools.rewards import NUMBERS, Reward, RewardArgs
from stillhouse.tools.running import run_function
from stillhouse.tools.sandbox import Sandbox, SandboxFailed
from stillhouse.tools.threads import TimeLimitReached
from stillhouse.tools.user_file import load_module
from stillhouse.types import Message, PromptMetadata, Trajectory


@dataclass(frozen=True, slots=True)
class Rewards:
    """How one trajectory scored."""

    total: float | None
    """0 where a precondition gave 0; else the mean of the other rewards, or of the preconditions where there is nothing
    else. None (unverified) where a reward it needs has none, or there are no rewards at all."""
    values: dict[str, float | None]
    """Each reward by name; None where it could not be computed. Once a precondition gave 0, the rest is not run."""
    errors: dict[str, str]
    """Why a reward could not be computed."""


class RewardSet:
    """The rewards of a run. As an async context manager it ends its sandbox with the block.

    Args:
        rewards: in the order they run, preconditions first.
        timeout_s: longest run of one in seconds, for rewards that set none of their own.
        environment: the environment variables that rewards see.
    """

    def __init__(
        self, rewards: Iterable[Reward], *, timeout_s: float = 60.0, environment: Mapping[str, str] | None = None
    ) -> None:
        self._rewards = sorted(rewards, key=lambda one: not one.is_precondition)
        self._timeout_s = timeout_s
        self._environment = dict(environment or {})
        self._sandbox = Sandbox(self._environment)

    @classmethod
    def from_config(cls, config: ToolsConfig) -> Self:
        """The rewards of `tools.rewards_file`; none where it names no file.

        Raises:
            ConfigError: the file does not load, or has no function under `@reward`.
        """
        found = [] if config.rewards_file is None else load_rewards(Path(config.rewards_file))
        environment = {name: os.environ[name] for name in config.environment if name in os.environ}
        return cls(found, timeout_s=config.timeout_s, environment=environment)

    @property
    def names(self) -> list[str]:
        """Names of the rewards, preconditions first."""
        return [one.name for one in self._rewards]

    async def score(self, trajectory: Trajectory, metadata: PromptMetadata | None) -> Rewards:
        """How the trajectory scores; a reward that fails is recorded, and nothing it does raises here.

        Args:
            trajectory: a finished one.
            metadata: that of its prompt; None where it has none.
        """
        args = self._args(trajectory, metadata)
        values: dict[str, float | None] = {}
        errors: dict[str, str] = {}
        for group in ([one for one in self._rewards if one.is_precondition is first] for first in (True, False)):
            outcomes = await asyncio.gather(*(self._value(one, args, trajectory.messages) for one in group))
            for one, outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, str):
                    errors[one.name] = outcome
                values[one.name] = None if isinstance(outcome, str) else outcome
            if any(one.is_precondition and values[one.name] == 0 for one in group):
                return Rewards(0.0, values, errors)
        return Rewards(self._total(values), values, errors)

    def _args(self, trajectory: Trajectory, metadata: PromptMetadata | None) -> RewardArgs:
        return RewardArgs(
            metadata=metadata.metadata if metadata is not None else {},
            expected_answer=metadata.expected_answer if metadata is not None else None,
            tag=metadata.tag if metadata is not None else None,
            stop_reason=trajectory.stop_reason,
            environment=self._environment,
            rollout_key=trajectory.rollout_key,
            prompt_id=trajectory.prompt_id,
            sample_index=trajectory.sample_index,
        )

    async def _value(self, one: Reward, args: RewardArgs, messages: list[Message]) -> float | str:
        """The reward, or why there is none."""
        timeout_s = one.timeout_s or self._timeout_s
        try:
            async with one.places.one():
                if one.source is None:
                    given = dict(zip(inspect.signature(one.function).parameters, (args, messages), strict=True))
                    value = await run_function(one.function, given, timeout_s)
                else:
                    payload = {"args": asdict(args), "messages": messages}
                    value = await self._sandbox.call(one.source, payload, timeout_s)
        except TimeLimitReached:
            return f"did not return within {timeout_s:g} s"
        except (SandboxFailed, ToolError) as error:
            return str(error)
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {error}"
        if not isinstance(value, NUMBERS) or not math.isfinite(value) or not 0 <= value <= 1:
            return f"returned {value!r}; expected a number from 0 to 1"
        return float(value)

    def _total(self, values: Mapping[str, float | None]) -> float | None:
        preconditions = [values[one.name] for one in self._rewards if one.is_precondition]
        counted = [values[one.name] for one in self._rewards if not one.is_precondition] or preconditions
        known = [value for value in counted if value is not None]
        if not counted or None in preconditions or len(known) < len(counted):
            return None
        return math.fsum(known) / len(known)

    async def __aenter__(self) -> Self:
        await self._sandbox.load({one.source.file for one in self._rewards if one.source is not None})
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._sandbox.close()


def load_rewards(path: Path) -> list[Reward]:
    """The functions under `@reward` in a Python file, in the order they are written.

    Raises:
        ConfigError: no such file, it does not run, or it has no `@reward`; the message names the file, and the line
            where there is one.
    """
    module = load_module(path, "tools.rewards_file")
    found = [value for value in vars(module).values() if isinstance(value, Reward)]
    if not found:
        raise ConfigError(
            f"{path}: has no function under @reward. Write `from stillhouse.tools import reward` and put @reward above "
            "each function that scores a trajectory"
        )
    return found
