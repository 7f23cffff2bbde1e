"""Sampled trajectories with the advantage of every token, in files that `stillhouse view` shows."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from stillhouse.store.atomic import replaced_atomically
from stillhouse.store.records import write_jsonl
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.algorithms.algorithm import Algorithm
from stillhouse.training.on_policy.monitoring.shown_tokens import shown_tokens
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject

SHOWN_FOLDER: Final = "trajectories"

_EVERY_STEPS: Final = 20
_NUM_EACH: Final = 2

Choice = Literal["best", "worst", "random"]


class ScoredTrajectory(NamedTuple):
    """One trajectory with its sample, reward and advantages."""

    trajectory: SampledTrajectory
    sample: ScoredSample
    reward: TrajectoryReward
    advantages: Sequence[float]
    """One for each token, see `Algorithm.advantages_when_sampled`."""

    @property
    def mean_advantage(self) -> float:
        """Mean over the sampled tokens; there is at least one."""
        return math.fsum(self.advantages) / sum(self.sample.loss_mask)


class ShownTrajectories:
    """Writes some trajectories every 20 optimiser steps and logs their file as an artifact.

    Args:
        tokenizer: the student's.
        folder: where the files are written.
        listener: logs each file as an artifact.
        algorithm: computes the advantages; its config says how many steps a batch has.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, folder: Path, listener: Listener, algorithm: Algorithm
    ) -> None:
        self._tokenizer = tokenizer
        self._folder = folder
        self._listener = listener
        self._algorithm = algorithm

    def show(
        self,
        index: int,
        trajectories: Sequence[SampledTrajectory],
        samples: Sequence[ScoredSample],
        rewards: Sequence[TrajectoryReward],
    ) -> None:
        """Write some of batch `index` if a file is due at any of its steps; the first batch always has one.

        Args:
            index: number of the batch, from 0.
            trajectories: the whole batch.
            samples: one for each trajectory with at least one turn, in their order.
            rewards: aligned with `trajectories`.

        Raises:
            StoreError: the file cannot be written.
        """
        config = self._algorithm.config
        num_steps = config.updates_per_batch
        step = index * num_steps
        if -step % _EVERY_STEPS >= num_steps or not samples:
            return
        pairs = zip(trajectories, rewards, strict=True)
        sampled = [(trajectory, reward) for trajectory, reward in pairs if trajectory.num_turns > 0]
        scored = [
            ScoredTrajectory(trajectory, sample, reward, self._algorithm.advantages_when_sampled(sample))
            for (trajectory, reward), sample in zip(sampled, samples, strict=True)
        ]
        path = self._folder / f"step-{step:08d}.jsonl"
        with replaced_atomically(path) as work:
            write_jsonl(work, [_row(*chosen, self._tokenizer) for chosen in select(scored, seed=index)])
        self._listener.log_artifact(path, SHOWN_FOLDER)


def select(trajectories: Sequence[ScoredTrajectory], *, seed: int) -> list[tuple[Choice, ScoredTrajectory]]:
    """Return the two best, the two worst and two others, in this order; each trajectory once.

    Best is the highest reward and, where rewards are equal or there are none, the highest mean advantage.
    """
    rewarded = [scored for scored in trajectories if scored.reward.total is not None]
    ranked = sorted(
        rewarded or trajectories, key=lambda scored: (scored.reward.total or 0.0, scored.mean_advantage), reverse=True
    )
    best, worst = ranked[:_NUM_EACH], ranked[_NUM_EACH:][-_NUM_EACH:]
    ids = {id(scored) for scored in (*best, *worst)}
    others = [scored for scored in trajectories if id(scored) not in ids]
    others = random.Random(seed).sample(others, min(_NUM_EACH, len(others)))
    return [
        *(("best", scored) for scored in best),
        *(("worst", scored) for scored in reversed(worst)),
        *(("random", scored) for scored in others),
    ]


def _row(choice: Choice, scored: ScoredTrajectory, tokenizer: PreTrainedTokenizerBase) -> JsonObject:
    """Return the trajectory in the form of a dataset's row, with its tokens."""
    trajectory, sample, reward, advantages = scored
    return {
        "id": trajectory.rollout_key,
        "prompt_id": trajectory.prompt_id,
        "sample_index": trajectory.sample_index,
        "messages": trajectory.messages,
        "tools": trajectory.tools,
        "stop_reason": trajectory.stop_reason,
        "teacher": trajectory.model,
        "turns": trajectory.num_turns,
        "num_tool_calls": trajectory.num_tool_calls,
        "num_tool_errors": trajectory.num_tool_errors,
        "completion_tokens": sum(sample.loss_mask),
        "score": reward.total,
        "metadata": {
            "shown_as": choice,
            "mean_advantage": scored.mean_advantage,
            "rewards": reward.parts,
            "reward_errors": reward.errors,
            "teacher": sample.teacher,
            "policy_version": sample.policy_version,
        },
        "tokens": shown_tokens(sample, advantages, tokenizer),
    }
