"""Sampled trajectories with the advantage of every token, in files that `stillhouse view` shows."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from stillhouse.store.atomic import replaced_atomically
from stillhouse.store.records import write_jsonl
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.on_policy.table import RolloutTable, Row
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject

SHOWN_FOLDER: Final = "trajectories"

_EVERY_STEPS: Final = 20
_NUM_EACH: Final = 2

Choice = Literal["best", "worst", "random"]


class ScoredTrajectory(NamedTuple):
    """One trajectory with its row of the table, its reward, and the mean advantage of its sampled tokens."""

    trajectory: SampledTrajectory
    row: Row
    reward: TrajectoryReward
    mean_advantage: float


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
        rows, advantages = table.rows(), self.algorithm.advantages_when_sampled(table)
        means = [math.fsum(advantages[row.tokens]) / int(count) for row, count in zip(rows, table.counts, strict=True)]
        scored = [
            ScoredTrajectory(trajectory, row, reward, mean)
            for (trajectory, reward), row, mean in zip(sampled, rows, means, strict=True)
        ]
        path = self.folder / f"step-{step:08d}.jsonl"
        with replaced_atomically(path) as work:
            chosen = select(scored, seed=table.index)
            write_jsonl(work, [_row(*one, table, advantages, self.tokenizer) for one in chosen])
        self.listener.log_artifact(path, SHOWN_FOLDER)


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


def _row(
    choice: Choice,
    scored: ScoredTrajectory,
    table: RolloutTable,
    advantages: np.ndarray,
    tokenizer: PreTrainedTokenizerBase,
) -> JsonObject:
    """Return the trajectory in the form of a dataset's row, with its tokens."""
    trajectory, row, reward, mean_advantage = scored
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
            "teacher": table.teacher[row.number],
            "policy_version": trajectory.policy_version,
        },
        "tokens": shown_tokens(table, row, advantages, tokenizer),
    }


_REPLACEMENT: Final = "\ufffd"
_MAX_UTF8_BYTES: Final = 4


def shown_tokens(
    table: RolloutTable, row: Row, advantages: np.ndarray, tokenizer: PreTrainedTokenizerBase
) -> list[JsonObject]:
    """Return the tokens after the prompt: the text of each and, of the sampled ones, id, advantage and nats."""
    first = row.tokens.start + int(np.argmax(row.loss_mask))
    ids, mask = (column[first : row.tokens.stop].tolist() for column in (table.token_ids, table.loss_mask))
    columns = {"id": table.token_ids, "advantage": advantages, "student": table.sampling_logprobs}
    if not np.isnan(table.teacher_logprobs[first]):
        columns |= {"teacher": table.teacher_logprobs, "kl": table.sampled_kl}
    return [
        {"text": text, **({name: column[place].item() for name, column in columns.items()} if sampled else {})}
        for place, (text, sampled) in enumerate(zip(token_texts(tokenizer, ids), mask, strict=True), first)
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
