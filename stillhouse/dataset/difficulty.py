"""How hard rows are for the student before it is trained: its loss on a row, and its pass rate on the prompt."""

import asyncio
import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.dataset.schema import DIFFICULTY_COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.dataset.totals import prompt_part
from stillhouse.processes.shared import Shared
from stillhouse.store import prompt_id
from stillhouse.types import Model, Prompt, PromptMetadata, StopReason, Trajectory
from stillhouse.verification import examine_trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_CHUNK: Final = 64
"""Rows scored between checks for cancellation."""


@dataclass(slots=True)
class StudentScorer:
    """A student in this process, loaded when it first scores. Thread-safe."""

    model: Model
    runtime: RuntimeConfig
    _lock: threading.Lock = field(default_factory=threading.Lock)
    loaded: "tuple[PreTrainedModel, PreTrainedTokenizerBase] | None" = None

    async def nll(self, trajectories: Sequence[Trajectory], max_length: int) -> list[float | None]:
        """Return the mean negative log-likelihood of each row's supervised tokens, in nats a token.

            nll = -mean_t log p(token_t | tokens before it),   over tokens t with a loss mask, in all its samples

        None if a trajectory has no answer, cannot be rendered with the student's chat template, has a sample longer
        than `max_length` tokens, or has no supervised tokens. Raises ConfigError if the student cannot be loaded.
        """
        losses: list[float | None] = []
        for start in range(0, len(trajectories), _CHUNK):
            losses += await asyncio.to_thread(self._score, trajectories[start : start + _CHUNK], max_length)
        return losses

    def _score(self, trajectories: Sequence[Trajectory], max_length: int) -> list[float | None]:
        from stillhouse.chat.rendering import TemplateError
        from stillhouse.chat.samples import render_samples
        from stillhouse.chat.tokenizer import load_tokenizer
        from stillhouse.serving.models import load_model
        from stillhouse.serving.score import score_tokens

        with self._lock:
            if self.loaded is None:
                runtime = self.runtime
                ref = self.model.ref
                model = load_model(ref, device=runtime.device, dtype="auto", num_threads=runtime.num_threads)
                self.loaded = model, load_tokenizer(ref, self.model.chat_template_kwargs)
            model, tokenizer = self.loaded
            rendered = {}
            for index, trajectory in enumerate(trajectories):
                if trajectory.stop_reason is not StopReason.ANSWERED:
                    continue
                try:
                    samples = render_samples(tokenizer, trajectory.messages, trajectory.tools)
                except TemplateError:
                    continue
                # The first token has no context and so no likelihood.
                fits = all(len(sample.token_ids) <= max_length for sample in samples)
                if fits and any(any(sample.loss_mask[1:]) for sample in samples):
                    rendered[index] = samples
            flat = [sample.token_ids for samples in rendered.values() for sample in samples]
            scores = iter(score_tokens(model, flat))
        losses: list[float | None] = [None] * len(trajectories)
        for index, samples in rendered.items():
            targets = [
                logprob
                for sample, logprobs in zip(samples, islice(scores, len(samples)), strict=True)
                for logprob in compress(logprobs[1:], sample.loss_mask[1:])
            ]
            losses[index] = -math.fsum(targets) / len(targets)
        return losses

    def close(self) -> None:
        """Free its memory."""
        if self.loaded is None:
            return
        import torch

        self.loaded = None
        # Another process may serve or train next on the same device.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


_scorers: Final = Shared[StudentScorer]()


def student_scorer(model: Model, runtime: RuntimeConfig) -> AbstractContextManager[StudentScorer]:
    """Yield the process's scorer of a student, shared by concurrent users; the last one frees its memory."""
    return _scorers.used((model.fingerprint, runtime.device), lambda: closing(StudentScorer(model, runtime)))


def student_prompts(trajectories: Iterable[Trajectory]) -> dict[str, Prompt]:
    """Return prompts for the student, by the prompt id of the trajectories.

    A prompt is what its trajectories begin with, including the system prompt, with the tools they were offered.
    """
    prompts: dict[str, Prompt] = {}
    for trajectory in trajectories:
        if trajectory.prompt_id not in prompts:
            given = prompt_part(trajectory)
            tools = [tool["function"]["name"] for tool in trajectory.tools]
            prompts[trajectory.prompt_id] = Prompt(prompt_id(given, tools), given, tools)
    return prompts


def student_rollouts(rollouts: RolloutsConfig, num_samples: int) -> RolloutsConfig:
    """Return how the student is sampled: within the teacher's limits, at temperature 1 as in evaluation."""
    return RolloutsConfig(
        num_samples=num_samples,
        temperature=1.0,
        max_tokens=rollouts.max_tokens,
        max_turns=rollouts.max_turns,
        closing_answer=False,
        seed=rollouts.seed,
    )


def pass_rates(
    sampled: Iterable[Trajectory], prompts: Mapping[str, Prompt], metadata: Mapping[str, PromptMetadata]
) -> dict[str, float]:
    """Return the share of right answers among verified ones, by prompt id; prompts without a verified one are left out.

    `prompts` are those of `student_prompts`; `metadata` is keyed by the prompt ids of the dataset's trajectories.
    """
    dataset_ids = {prompt.id: dataset_id for dataset_id, prompt in prompts.items()}
    verdicts: defaultdict[str, list[bool]] = defaultdict(list)
    for trajectory in sampled:
        dataset_id = dataset_ids[trajectory.prompt_id]
        verified = examine_trajectory(replace(trajectory, prompt_id=dataset_id), metadata.get(dataset_id)).verified
        if verified is not None:
            verdicts[dataset_id].append(verified)
    return {dataset_id: sum(verified) / len(verified) for dataset_id, verified in verdicts.items()}


def write_difficulty(path: Path, rows: Iterable[tuple[float | None, float | None]]) -> int:
    """Write `schema.DIFFICULTY_COLUMNS` from (NLL, pass rate) of each trajectory of a shard; return their number."""
    with TableWriter(path, DIFFICULTY_COLUMNS) as table:
        for nll, pass_rate in rows:
            table.write({"student_nll": nll, "student_pass_rate": pass_rate})
    return table.num_rows
