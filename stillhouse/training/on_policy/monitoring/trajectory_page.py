"""A page of sampled trajectories with the advantage of every token in colour; one HTML file without scripts."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from stillhouse.report.conversation import question
from stillhouse.report.environment import page_environment, style_sheet
from stillhouse.store.atomic import write_atomic
from stillhouse.training.monitoring.metrics import Listener
from stillhouse.training.on_policy.algorithms.algorithm import Algorithm
from stillhouse.training.on_policy.monitoring.shown_tokens import LEVELS, full_scale, level_value, segments
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.trajectories import SampledTrajectory

PAGES_FOLDER: Final = "trajectories"

_FOLDER: Final = Path(__file__).parent
_NUM_EACH: Final = 2
_QUESTION_CHARS: Final = 200


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


class TrajectoryPages:
    """Writes a page of some trajectories every `show_every_steps` steps and logs it as an artifact.

    Args:
        tokenizer: the student's.
        folder: where the pages are written.
        listener: logs each page as an artifact.
        algorithm: computes the advantages; its config says how often a page is due.
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
        """Writes a page of batch `index` if one is due at any of its steps; the first batch always has one.

        Args:
            index: number of the batch, from 0.
            trajectories: the whole batch.
            samples: one for each trajectory with at least one turn, in their order.
            rewards: aligned with `trajectories`.

        Raises:
            StoreError: the page cannot be written.
        """
        config = self._algorithm.config
        num_steps = config.updates_per_batch
        step = index * num_steps
        if -step % config.show_every_steps >= num_steps or not samples:
            return
        pairs = zip(trajectories, rewards, strict=True)
        sampled = [(trajectory, reward) for trajectory, reward in pairs if trajectory.num_turns > 0]
        scored = [
            ScoredTrajectory(trajectory, sample, reward, self._algorithm.advantages_when_sampled(sample))
            for (trajectory, reward), sample in zip(sampled, samples, strict=True)
        ]
        path = self._folder / f"step-{step:08d}.html"
        write_page(path, f"Trajectories of step {step}", select(scored, seed=index), self._tokenizer)
        self._listener.log_artifact(path, PAGES_FOLDER)


@dataclass(frozen=True, slots=True)
class Selected:
    """A trajectory to show."""

    reason: Literal["best", "worst", "random"]
    scored: ScoredTrajectory


def select(trajectories: Sequence[ScoredTrajectory], *, seed: int) -> list[Selected]:
    """The two best, the two worst and two others, in this order; each trajectory once.

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
        *(Selected("best", scored) for scored in best),
        *(Selected("worst", scored) for scored in reversed(worst)),
        *(Selected("random", scored) for scored in others),
    ]


def write_page(path: Path, title: str, selected: Sequence[Selected], tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the page atomically.

    Raises:
        StoreError: no space or no permission.
    """
    trajectories = [entry.scored for entry in selected]
    scale = full_scale(
        chain.from_iterable(compress(scored.advantages, scored.sample.loss_mask) for scored in trajectories)
    )
    template = page_environment(_FOLDER).get_template("trajectory_page.html.j2")
    html = template.render(
        title=title,
        style=style_sheet(_FOLDER / "trajectory_page.css"),
        levels=[(level, f"{level_value(level, scale):+.2g}") for level in range(-LEVELS, LEVELS + 1)],
        compares_tokens=any(scored.sample.teacher_logprobs is not None for scored in trajectories),
        trajectories=[_view(entry, scale, tokenizer) for entry in selected],
    )
    write_atomic(path, html.encode("utf-8", errors="replace"))


def _view(selected: Selected, scale: float, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Template variables of one trajectory."""
    trajectory, sample, reward, advantages = selected.scored
    start, num_sampled = sample.loss_mask.index(True), sum(sample.loss_mask)
    kls = sample.sampled_kl
    facts = {
        "stopped": str(trajectory.stop_reason).replace("_", " "),
        "turns": trajectory.num_turns,
        "sampled tokens": f"{num_sampled:,}",
        "tool calls": trajectory.num_tool_calls,
        "mean advantage": f"{selected.scored.mean_advantage:+z.3f}",
        "mean KL": "not sampled" if kls is None else f"{math.fsum(kls) / num_sampled:+z.3f} nats",
        "teacher": sample.teacher or "none",
        "policy version": sample.policy_version,
    }
    return {
        "reason": selected.reason,
        "question": question(trajectory.messages, _QUESTION_CHARS),
        "reward": reward.total,
        "parts": reward.parts,
        "errors": reward.errors,
        "facts": facts,
        "num_prompt_tokens": start,
        "prompt": tokenizer.decode(sample.token_ids[:start]),
        "segments": list(segments(sample, advantages, scale, tokenizer)),
    }
