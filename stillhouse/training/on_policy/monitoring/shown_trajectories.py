"""Sampled trajectories with the advantage of every token, in files that `stillhouse view` shows."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from stillhouse.store.atomic import replaced_atomically
from stillhouse.store.records import write_jsonl
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.on_policy.table import RolloutTable
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject

SHOWN_FOLDER: Final = "trajectories"

_EVERY_STEPS: Final = 20
_NUM_EACH: Final = 2

Choice = Literal["best", "worst", "random"]


@dataclass(frozen=True, eq=False)
class ShownTrajectories:
    """Writes some trajectories to `folder` every 20 optimiser steps and logs their file as an artifact."""

    tokenizer: PreTrainedTokenizerBase
    folder: Path
    listener: Listener
    algorithm: GRPO

    def show(
        self,
        table: RolloutTable,
        trajectories: Sequence[SampledTrajectory],
        rewards: Sequence[TrajectoryReward],
    ) -> None:
        """Write some of a batch if a file is due at any of its steps; the first batch always has one.

        The table has each trajectory with at least one turn, in their order.
        """
        config = self.algorithm.config
        num_steps = config.updates_per_batch
        step = table.index * num_steps
        if -step % _EVERY_STEPS >= num_steps or not len(table):
            return
        pairs = zip(trajectories, rewards, strict=True)
        sampled = [(trajectory, reward) for trajectory, reward in pairs if trajectory.num_turns > 0]
        advantages = self.algorithm.advantages_when_sampled(table)
        sums = (math.fsum(advantages[row.tokens]) for row in table.rows())
        means = [total / count for total, count in zip(sums, table.counts.tolist(), strict=True)]
        rows = []
        for choice, number in select([reward.total for _, reward in sampled], means, seed=table.index):
            tokens = shown_tokens(table, number, advantages, self.tokenizer)
            rows.append(_row(*sampled[number], choice, means[number], table.teacher[number], tokens))
        path = self.folder / f"step-{step:08d}.jsonl"
        with replaced_atomically(path) as work:
            write_jsonl(work, rows)
        self.listener.log_artifact(path, SHOWN_FOLDER)


def select(rewards: Sequence[float | None], mean_advantages: Sequence[float], *, seed: int) -> list[tuple[Choice, int]]:
    """Return the places of the two best, the two worst and two others, in this order; each trajectory once.

    Best is the highest reward and, where rewards are equal or there are none, the highest mean advantage.
    """
    places = range(len(rewards))
    ranked = sorted(
        [place for place in places if rewards[place] is not None] or places,
        key=lambda place: (rewards[place] or 0.0, mean_advantages[place]),
        reverse=True,
    )
    best, worst = ranked[:_NUM_EACH], ranked[_NUM_EACH:][-_NUM_EACH:]
    others = [place for place in places if place not in best + worst]
    others = random.Random(seed).sample(others, min(_NUM_EACH, len(others)))
    return [
        *(("best", place) for place in best),
        *(("worst", place) for place in reversed(worst)),
        *(("random", place) for place in others),
    ]


def _row(
    trajectory: SampledTrajectory,
    reward: TrajectoryReward,
    choice: Choice,
    mean_advantage: float,
    teacher: str | None,
    tokens: list[JsonObject],
) -> JsonObject:
    """Return the trajectory in the form of a dataset's row, with its tokens."""
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
        "completion_tokens": sum(trajectory.loss_mask),
        "score": reward.total,
        "metadata": {
            "shown_as": choice,
            "mean_advantage": mean_advantage,
            "rewards": reward.parts,
            "reward_errors": reward.errors,
            "teacher": teacher,
            "policy_version": trajectory.policy_version,
        },
        "tokens": tokens,
    }


_REPLACEMENT: Final = "\ufffd"
_MAX_UTF8_BYTES: Final = 4


def shown_tokens(
    table: RolloutTable, number: int, advantages: np.ndarray, tokenizer: PreTrainedTokenizerBase
) -> list[JsonObject]:
    """Return a trajectory's tokens after the prompt: their texts and, of the sampled ones, id, advantage and nats."""
    tokens = slice(table.starts[number] + np.argmax(table.loss_mask[table.starts[number] :]), table.starts[number + 1])
    columns = {"id": table.token_ids, "advantage": advantages, "student": table.sampling_logprobs}
    if not np.isnan(table.teacher_logprobs[tokens]).any():
        columns |= {"teacher": table.teacher_logprobs, "kl": table.sampled_kl}
    lists = {name: column[tokens].tolist() for name, column in columns.items()}
    texts = token_texts(tokenizer, table.token_ids[tokens].tolist())
    return [
        {"text": text, **({name: values[place] for name, values in lists.items()} if is_sampled else {})}
        for place, (text, is_sampled) in enumerate(zip(texts, table.loss_mask[tokens].tolist(), strict=True))
    ]


def token_texts(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    """Return the text of each token; joined they are the text of the sequence, special tokens included.

    A character of several tokens belongs to the last of them; the others are empty. Each token is decoded together
    with the one before it, since many tokenizers write a space between two tokens but none before the first.
    """
    texts: list[str] = []
    context = done = 0
    for end in range(1, len(token_ids) + 1):
        prefix = tokenizer.decode(token_ids[context:done])
        text = tokenizer.decode(token_ids[context:end])
        # Four bytes complete any character: a longer incomplete sequence is invalid and shown as such.
        if text.endswith(_REPLACEMENT) and end - done < _MAX_UTF8_BYTES and end < len(token_ids):
            texts.append("")
            continue
        texts.append(text[len(prefix) :])
        context, done = done, end
    return texts
