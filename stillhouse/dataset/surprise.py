"""How surprised the teacher is by rows: by what was recorded while it sampled them, else by scoring them."""

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from stillhouse.config import RuntimeConfig
from stillhouse.dataset.schema import TEACHER_COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.errors import InputError
from stillhouse.inference.top_tokens import TopTokens
from stillhouse.types import Model, StopReason, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from stillhouse.chat.samples import RenderedSample
    from stillhouse.dataset.local_scores import LocalScorer

_CHUNK: Final = 64
"""Rows that are scored together."""


class TeacherSurprise:
    """Measures the mean negative log-likelihood of rows under the teacher, in nats a token.

        nll = -mean_t log p(token_t | tokens before it)

    Where every turn was recorded (`rollouts.record_top_k`) it is over the tokens that were sampled, at temperature 1.
    Any other row is rendered by the teacher's own chat template and scored over the assistant's tokens, through the
    ledger.

    Args:
        teacher: a local model, loaded when a row has to be scored; None leaves such rows unmeasured.
        runtime: of the run.
    """

    def __init__(self, teacher: Model | None, runtime: RuntimeConfig) -> None:
        self._teacher = teacher
        self._runtime = runtime
        self._loaded: tuple[LocalScorer, PreTrainedTokenizerBase, int | None] | None = None

    def measure(self, trajectories: Sequence[Trajectory]) -> list[float | None]:
        """One value for each trajectory.

        None for one that was not recorded and has no answer, cannot be rendered, or outgrows the teacher's context.

        Raises:
            ConfigError: the teacher cannot be loaded.
            InputError: what was recorded of a row is damaged.
            StoreError: the ledger cannot be read or written.
        """
        values = [_recorded_nll(trajectory) for trajectory in trajectories]
        others = [
            number
            for number, trajectory in enumerate(trajectories)
            if values[number] is None and trajectory.stop_reason is StopReason.ANSWERED
        ]
        if self._teacher is not None:
            for first in range(0, len(others), _CHUNK):
                chunk = others[first : first + _CHUNK]
                scored = self._scored(self._teacher, [trajectories[number] for number in chunk])
                for number, value in zip(chunk, scored, strict=True):
                    values[number] = value
        return values

    def close(self) -> None:
        """Frees the teacher, if it was loaded."""
        if self._loaded is not None:
            self._loaded[0].close()
            self._loaded = None

    def _scored(self, teacher: Model, trajectories: Sequence[Trajectory]) -> list[float | None]:
        if self._loaded is None:
            from stillhouse.chat.tokenizer import load_tokenizer, num_positions
            from stillhouse.dataset.local_scores import LocalScorer

            tokenizer = load_tokenizer(teacher.ref, teacher.chat_template_kwargs)
            self._loaded = LocalScorer(teacher.ref, self._runtime), tokenizer, num_positions(teacher.ref)
        scorer, tokenizer, context = self._loaded
        samples = [_samples(tokenizer, trajectory, context) for trajectory in trajectories]
        logprobs = iter(scorer.logprobs([sample for rendered in samples for sample in rendered]))
        return [
            _mean_nll([value for values in islice(logprobs, len(rendered)) for value in values]) for rendered in samples
        ]


def _recorded_nll(trajectory: Trajectory) -> float | None:
    packed = [turn.top_logprobs for turn in trajectory.turns if turn.top_logprobs is not None]
    if not packed or len(packed) < len(trajectory.turns):
        return None
    try:
        logprobs = [TopTokens.unpack(text).logprobs_N for text in packed]
    except ValueError as error:
        raise InputError(f"trajectory {trajectory.rollout_key}: its top_logprobs are damaged: {error}") from error
    return _mean_nll(np.concatenate(logprobs).tolist())


def _samples(
    tokenizer: "PreTrainedTokenizerBase", trajectory: Trajectory, context: int | None
) -> "list[RenderedSample]":
    """The row's samples with targets; none where one does not fit or cannot be rendered."""
    from stillhouse.chat.rendering import TemplateError
    from stillhouse.chat.samples import render_samples

    try:
        samples = render_samples(tokenizer, trajectory.messages, trajectory.tools)
    except TemplateError:
        return []
    if context is not None and any(len(sample.token_ids) > context for sample in samples):
        return []
    # The first token has no context and so no likelihood.
    samples = [sample._replace(loss_mask=[False, *sample.loss_mask[1:]]) for sample in samples]
    return [sample for sample in samples if any(sample.loss_mask)]


def _mean_nll(logprobs: Sequence[float]) -> float | None:
    return -math.fsum(logprobs) / len(logprobs) if logprobs else None


def write_surprise(path: Path, values: Sequence[float | None]) -> None:
    """Writes `schema.TEACHER_COLUMNS` of a shard's trajectories."""
    with TableWriter(path, TEACHER_COLUMNS) as table:
        for value in values:
            table.write({"teacher_nll": value})
