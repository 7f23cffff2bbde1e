"""A page of sampled trajectories with the advantage of every token in colour: what the student is told, made visible.

The page is one file without scripts that needs nothing beside it.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from stillhouse.config import OnPolicyConfig
from stillhouse.report.environment import page_environment
from stillhouse.store.atomic import write_atomic
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.loss.advantages import sampled_advantages
from stillhouse.training.on_policy.monitoring.shown_tokens import LEVELS, full_scale, level_value, segments
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.trajectories import SampledTrajectory

PAGES_FOLDER: Final = "trajectories"

_FOLDER: Final = Path(__file__).parent
_NUM_EACH: Final = 2
_ASKED_CHARS: Final = 200


class Rollout(NamedTuple):
    """One trajectory with all that is known of it."""

    trajectory: SampledTrajectory
    sample: ScoredSample
    reward: TrajectoryReward
    advantages: Sequence[float]
    """Of its tokens, see `sampled_advantages`."""

    @property
    def mean_advantage(self) -> float:
        """Over its sampled tokens, of which it has one at least."""
        return math.fsum(self.advantages) / sum(self.sample.loss_mask)


class TrajectoryPages:
    """Writes a page of some trajectories every so many steps, and gives it to whoever listens.

    Args:
        tokenizer: the student's.
        folder: where the pages are written.
        listener: gets each of them as an artifact.
        config: how often, and what the advantage is made of.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, folder: Path, listener: Listener, config: OnPolicyConfig
    ) -> None:
        self._tokenizer = tokenizer
        self._folder = folder
        self._listener = listener
        self._config = config

    def show(
        self,
        index: int,
        trajectories: Sequence[SampledTrajectory],
        samples: Sequence[ScoredSample],
        rewards: Sequence[TrajectoryReward],
    ) -> None:
        """Shows some trajectories of batch `index` where a page is due at one of its steps; the first batch has one.

        Args:
            index: place of the batch in the training, from 0.
            trajectories: all of the batch.
            samples: what is trained on, in the order of the trajectories that sampled anything.
            rewards: aligned with `trajectories`.

        Raises:
            StoreError: the page cannot be written.
        """
        num_steps = self._config.updates_per_batch
        step = index * num_steps
        if -step % self._config.show_every_steps >= num_steps or not samples:
            return
        sampled = [(one, reward) for one, reward in zip(trajectories, rewards, strict=True) if one.num_turns > 0]
        rollouts = [
            Rollout(trajectory, sample, reward, sampled_advantages(sample, self._config))
            for (trajectory, reward), sample in zip(sampled, samples, strict=True)
        ]
        path = self._folder / f"step-{step:08d}.html"
        write_page(path, f"Trajectories of step {step}", choose(rollouts, seed=index), self._tokenizer)
        self._listener.log_artifact(path, PAGES_FOLDER)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A trajectory to show, and why."""

    why: Literal["best", "worst", "random"]
    rollout: Rollout


def choose(rollouts: Sequence[Rollout], *, seed: int) -> list[Chosen]:
    """The two best, the two worst and two others, in this order; each trajectory once.

    Best is the highest reward and, where rewards are equal or there are none, the highest mean advantage.
    """

    def merit(rollout: Rollout) -> tuple[float, float]:
        return rollout.reward.total or 0.0, rollout.mean_advantage

    is_rewarded = any(one.reward.total is not None for one in rollouts)
    ranked = sorted(
        (one for one in rollouts if one.reward.total is not None or not is_rewarded), key=merit, reverse=True
    )
    best, worst = ranked[:_NUM_EACH], ranked[_NUM_EACH:][-_NUM_EACH:]
    taken = {id(one) for one in (*best, *worst)}
    others = [one for one in rollouts if id(one) not in taken]
    others = random.Random(seed).sample(others, min(_NUM_EACH, len(others)))
    return [
        *(Chosen("best", one) for one in best),
        *(Chosen("worst", one) for one in reversed(worst)),
        *(Chosen("random", one) for one in others),
    ]


def write_page(path: Path, title: str, chosen: Sequence[Chosen], tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the page, whole or not at all.

    Raises:
        StoreError: no space or no permission.
    """
    rollouts = [one.rollout for one in chosen]
    scale = full_scale(chain.from_iterable(compress(one.advantages, one.sample.loss_mask) for one in rollouts))
    template = page_environment(_FOLDER).get_template("trajectory_page.html.j2")
    html = template.render(
        title=title,
        style=(_FOLDER / "trajectory_page.css").read_text(encoding="utf-8"),
        levels=[(level, f"{level_value(level, scale):+.2g}") for level in range(-LEVELS, LEVELS + 1)],
        compares_tokens=any(one.sample.teacher_logprobs is not None for one in rollouts),
        trajectories=[_view(one, scale, tokenizer) for one in chosen],
    )
    write_atomic(path, html.encode("utf-8", errors="replace"))


def _view(chosen: Chosen, scale: float, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What the template shows of one trajectory."""
    trajectory, sample, reward, advantages = chosen.rollout
    start, num_sampled = sample.loss_mask.index(True), sum(sample.loss_mask)
    kls = sample.sampled_kl
    facts = {
        "stopped": str(trajectory.stop_reason).replace("_", " "),
        "turns": trajectory.num_turns,
        "sampled tokens": f"{num_sampled:,}",
        "tool calls": trajectory.num_tool_calls,
        "mean advantage": f"{chosen.rollout.mean_advantage:+z.3f}",
        "mean KL": "not sampled" if kls is None else f"{math.fsum(kls) / num_sampled:+z.3f} nats",
        "teacher": sample.teacher or "none",
        "policy version": sample.policy_version,
    }
    return {
        "why": chosen.why,
        "asked": _asked(trajectory),
        "reward": reward.total,
        "parts": reward.parts,
        "errors": reward.errors,
        "facts": facts,
        "num_prompt_tokens": start,
        "prompt": tokenizer.decode(sample.token_ids[:start]),
        "segments": list(segments(sample, advantages, scale, tokenizer)),
    }


def _asked(trajectory: SampledTrajectory) -> str:
    """The start of the first thing the user said, on one line."""
    texts = (message.get("content") for message in trajectory.messages if message["role"] == "user")
    line = " ".join(str(next(texts, "") or "").split())
    return line if len(line) <= _ASKED_CHARS else line[:_ASKED_CHARS].rstrip() + "\u2026"
