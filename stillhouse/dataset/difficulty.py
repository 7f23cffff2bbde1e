"""How hard rows are for the student before it is trained: its loss on a row, and its pass rate on the prompt."""

import asyncio
import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.dataset.schema import DIFFICULTY_COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.dataset.totals import sampled_part
from stillhouse.store import prompt_id
from stillhouse.types import Prompt, PromptMetadata, StopReason, Trajectory
from stillhouse.verification import verify_trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_CHUNK: Final = 64
"""Rows scored between two looks at whether the stage was cancelled."""


@dataclass(slots=True)
class StudentScorer:
    """A student in this process; its weights are loaded when it first scores. Safe to use from several threads."""

    ref: str
    runtime: RuntimeConfig
    num_users: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _loaded: "tuple[PreTrainedModel, PreTrainedTokenizerBase] | None" = None

    @property
    def is_loaded(self) -> bool:
        """Whether the weights are in memory."""
        return self._loaded is not None

    async def nll(self, trajectories: Sequence[Trajectory], max_length: int) -> list[float | None]:
        """Mean negative log-likelihood of each row's supervised tokens, in nats a token.

            nll = -mean_t log p(token_t | tokens before it),   over tokens t with a loss mask, in all its samples

        None where a trajectory was not answered, cannot be rendered with the student's chat template, has a sample of
        more than `max_length` tokens, or has nothing supervised in it.

        Raises:
            ConfigError: the student cannot be loaded.
        """
        found: list[float | None] = []
        for start in range(0, len(trajectories), _CHUNK):
            found += await asyncio.to_thread(self._score, trajectories[start : start + _CHUNK], max_length)
        return found

    def _score(self, trajectories: Sequence[Trajectory], max_length: int) -> list[float | None]:
        from stillhouse.chat.rendering import TemplateError
        from stillhouse.chat.samples import render_samples
        from stillhouse.serving.score import score_tokens

        with self._lock:
            model, tokenizer = self._loaded = self._loaded or self._load()
            rendered = {}
            for place, trajectory in enumerate(trajectories):
                if trajectory.stop_reason is not StopReason.ANSWERED:
                    continue
                try:
                    samples = render_samples(tokenizer, trajectory.messages, trajectory.tools)
                except TemplateError:
                    continue
                # The first token has nothing before it and no likelihood.
                fits = all(len(sample.token_ids) <= max_length for sample in samples)
                if fits and any(any(sample.loss_mask[1:]) for sample in samples):
                    rendered[place] = samples
            flat = [sample.token_ids for samples in rendered.values() for sample in samples]
            scores = iter(score_tokens(model, flat))
        found: list[float | None] = [None] * len(trajectories)
        for place, samples in rendered.items():
            scored = zip(samples, islice(scores, len(samples)), strict=True)
            targets = [one for sample, logprobs in scored for one in compress(logprobs[1:], sample.loss_mask[1:])]
            found[place] = -math.fsum(targets) / len(targets)
        return found

    def free(self) -> None:
        """Lets go of the weights."""
        if not self.is_loaded:
            return
        import torch

        self._loaded = None
        # Another process may serve or train next on the same device.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _load(self) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        from stillhouse.chat.tokenizer import load_tokenizer
        from stillhouse.serving.models import load_model

        runtime = self.runtime
        model = load_model(self.ref, device=runtime.device, dtype="auto", num_threads=runtime.num_threads)
        return model, load_tokenizer(self.ref)


_scorers: Final[dict[tuple[str, str], StudentScorer]] = {}
_registry: Final = threading.Lock()


@contextmanager
def student_scorer(ref: str, runtime: RuntimeConfig) -> Iterator[StudentScorer]:
    """The process's scorer of a student, shared by all who use it at once; the last one to leave frees its memory.

    Args:
        ref: Model ref.
        runtime: Gives device and CPU threads.
    """
    key = (ref, runtime.device)
    with _registry:
        scorer = _scorers.setdefault(key, StudentScorer(ref, runtime))
        scorer.num_users += 1
    try:
        yield scorer
    finally:
        with _registry:
            scorer.num_users -= 1
            if scorer.num_users == 0:
                del _scorers[key]
        if scorer.num_users == 0:
            scorer.free()


def student_prompts(trajectories: Iterable[Trajectory]) -> dict[str, Prompt]:
    """What the student is asked, by the prompt id of the trajectories: each distinct prompt of theirs, once.

    A prompt is what its trajectories begin with, the system prompt that was put before it included, with the tools that
    they were offered.
    """
    prompts: dict[str, Prompt] = {}
    for trajectory in trajectories:
        if trajectory.prompt_id not in prompts:
            given = trajectory.messages[: len(trajectory.messages) - len(sampled_part(trajectory))]
            tools = [tool["function"]["name"] for tool in trajectory.tools]
            prompts[trajectory.prompt_id] = Prompt(prompt_id(given, tools), given, tools)
    return prompts


def student_rollouts(rollouts: RolloutsConfig, num_samples: int) -> RolloutsConfig:
    """How the student is sampled: within the teacher's bounds, at temperature 1, as evaluation samples it.

    Args:
        rollouts: of the teacher.
        num_samples: answers to each prompt.
    """
    return RolloutsConfig(
        num_samples=num_samples,
        temperature=1.0,
        max_tokens=rollouts.max_tokens,
        max_turns=rollouts.max_turns,
        closing_answer=False,
        seed=rollouts.seed,
        failure_budget=rollouts.failure_budget,
    )


def pass_rates(
    sampled: Iterable[Trajectory], prompts: Mapping[str, Prompt], metadata: Mapping[str, PromptMetadata]
) -> dict[str, float]:
    """Share of right answers among the verified ones, by prompt id; prompts without a verified one are left out.

    Args:
        sampled: the student's trajectories of `prompts`.
        prompts: what `student_prompts` gave.
        metadata: by the prompt id of the dataset's trajectories.
    """
    asked = {prompt.id: known for known, prompt in prompts.items()}
    verdicts: defaultdict[str, list[bool]] = defaultdict(list)
    for trajectory in sampled:
        known = asked[trajectory.prompt_id]
        verified = verify_trajectory(replace(trajectory, prompt_id=known), metadata.get(known))
        if verified is not None:
            verdicts[known].append(verified)
    return {known: sum(found) / len(found) for known, found in verdicts.items()}


def write_difficulty(path: Path, rows: Iterable[tuple[float | None, float | None]]) -> int:
    """Writes `schema.DIFFICULTY_COLUMNS`; the number of rows.

    Args:
        path: the file.
        rows: the student's mean negative log-likelihood and its pass rate, for each of a shard's trajectories in order.
    """
    with TableWriter(path, DIFFICULTY_COLUMNS) as table:
        for nll, pass_rate in rows:
            table.write({"student_nll": nll, "student_pass_rate": pass_rate})
    return table.num_rows
