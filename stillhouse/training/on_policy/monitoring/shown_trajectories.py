"""Sampled trajectories with the advantage of every token, in files that `stillhouse view` shows."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from stillhouse.store.atomic import replaced_atomically
from stillhouse.store.records import write_jsonl
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.algorithms.grpo import GRPO
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
    """One for each token, see `GRPO.advantages_when_sampled`."""

    @property
    def mean_advantage(self) -> float:
        """Return the mean over the sampled tokens; there is at least one."""
        return math.fsum(self.advantages) / sum(self.sample.loss_mask)


@dataclass(frozen=True, eq=False)
class ShownTrajectories:
    """Writes some trajectories to `folder` every 20 optimiser steps and logs their file as an artifact."""

    tokenizer: PreTrainedTokenizerBase
    folder: Path
    listener: Listener
    algorithm: GRPO

    def show(
        self,
        index: int,
        trajectories: Sequence[SampledTrajectory],
        samples: Sequence[ScoredSample],
        rewards: Sequence[TrajectoryReward],
    ) -> None:
        """Write some of batch `index` if a file is due at any of its steps; the first batch always has one.

        `samples` has one for each trajectory with at least one turn, in their order.
        """
        config = self.algorithm.config
        num_steps = config.updates_per_batch
        step = index * num_steps
        if -step % _EVERY_STEPS >= num_steps or not samples:
            return
        pairs = zip(trajectories, rewards, strict=True)
        sampled = [(trajectory, reward) for trajectory, reward in pairs if trajectory.num_turns > 0]
        scored = [
            ScoredTrajectory(trajectory, sample, reward, self.algorithm.advantages_when_sampled(sample))
            for (trajectory, reward), sample in zip(sampled, samples, strict=True)
        ]
        path = self.folder / f"step-{step:08d}.jsonl"
        with replaced_atomically(path) as work:
            write_jsonl(work, [_row(*chosen, self.tokenizer) for chosen in select(scored, seed=index)])
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


_REPLACEMENT: Final = "\ufffd"
_MAX_UTF8_BYTES: Final = 4


def shown_tokens(
    sample: ScoredSample, advantages: Sequence[float], tokenizer: PreTrainedTokenizerBase
) -> list[JsonObject]:
    """Return the tokens after the prompt: the text of each and, of the sampled ones, id, advantage and nats."""
    start = sample.loss_mask.index(True)
    kls = sample.sampled_kl
    tokens: list[JsonObject] = []
    for position, text in enumerate(token_texts(tokenizer, sample.token_ids[start:]), start=start):
        token: JsonObject = {"text": text}
        if sample.loss_mask[position]:
            token |= {"id": sample.token_ids[position], "advantage": advantages[position]}
            if sample.sampling_logprobs is not None:
                token["student"] = sample.sampling_logprobs[position]
            if sample.teacher_logprobs is not None and kls is not None:
                token |= {"teacher": sample.teacher_logprobs[position], "kl": kls[position]}
        tokens.append(token)
    return tokens


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
