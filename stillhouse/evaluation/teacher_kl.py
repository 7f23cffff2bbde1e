"""The reverse KL to the teacher on the tokens that a model samples itself."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stillhouse.config import RuntimeConfig
from stillhouse.errors import InputError
from stillhouse.types import Trajectory, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHUNK_SEQUENCES: Final = 256


@dataclass(slots=True)
class ScoredSpans:
    """A sequence that the teacher reads, and which of its tokens were sampled."""

    token_ids: list[int]
    positions: list[int] = field(default_factory=list)
    """Places of the sampled tokens in `token_ids`."""
    sampling_logprobs: list[float] = field(default_factory=list)
    """One for each of `positions`."""


def teacher_kl(
    trajectories: Iterable[Trajectory], teacher_ref: str, runtime: RuntimeConfig, *, temperature: float
) -> float | None:
    """Mean over sampled tokens of student minus teacher log-probability, in nats per token.

        teacher_kl = mean_t [ log p_student(y_t | y_<t) - log p_teacher(y_t | y_<t) ],   y_t sampled from p_student

    An unbiased estimate of the mean per-token reverse KL along the student's own trajectories, so only for tokens
    sampled at temperature 1 from the whole distribution; a single estimate can fall below zero, its expectation cannot.

    Returns:
        None at any other temperature, when a turn carries no token ids or sampling log-probabilities, or when nothing
        was sampled.

    Raises:
        InputError: a token id lies outside the teacher's vocabulary, so the two do not share a tokenizer.
        ConfigError: the teacher cannot be loaded.
    """
    if temperature != 1.0:
        return None
    spans: list[ScoredSpans] = []
    for trajectory in trajectories:
        if not all(_is_recorded(turn) for turn in trajectory.turns):
            return None
        spans += merge_turns(trajectory.turns)
    if not any(span.positions for span in spans):
        return None
    # Only this measure needs torch.
    import torch

    from stillhouse.serving.models import load_model

    teacher = load_model(teacher_ref, device=runtime.device, dtype="auto", num_threads=runtime.num_threads)
    try:
        return mean_log_ratio(spans, teacher, teacher_ref)
    finally:
        del teacher
        # Another process may serve or train next on the same device.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def mean_log_ratio(spans: Sequence[ScoredSpans], teacher: "PreTrainedModel", teacher_ref: str) -> float:
    """Mean of student minus teacher log-probability over all sampled positions; there must be some.

    Raises:
        InputError: a token id lies outside the teacher's vocabulary.
    """
    from stillhouse.serving.score import score_tokens

    num_known = teacher.config.get_text_config().vocab_size
    largest = max(max(span.token_ids) for span in spans)
    if largest >= num_known:
        raise InputError(
            f"token id {largest} was sampled, and teacher {teacher_ref!r} knows {num_known} tokens; expected student "
            "and teacher to share a tokenizer. Name such a teacher in on_policy.teacher"
        )
    differences: list[float] = []
    for first in range(0, len(spans), _CHUNK_SEQUENCES):
        chunk = spans[first : first + _CHUNK_SEQUENCES]
        scores = score_tokens(teacher, [span.token_ids for span in chunk])
        for span, teacher_logprobs in zip(chunk, scores, strict=True):
            differences += [
                sampled - teacher_logprobs[place]
                for place, sampled in zip(span.positions, span.sampling_logprobs, strict=True)
            ]
    return math.fsum(differences) / len(differences)


def merge_turns(turns: Sequence[Turn]) -> list[ScoredSpans]:
    """The fewest sequences that hold each turn's completion after exactly its own prompt.

    A turn whose prompt begins with the sequence so far continues it; any other starts a new span.
    """
    merged: list[ScoredSpans] = []
    for turn in turns:
        assert turn.prompt_ids is not None
        assert turn.completion_ids is not None
        assert turn.sampling_logprobs is not None
        current = merged[-1] if merged else None
        if current is None or turn.prompt_ids[: len(current.token_ids)] != current.token_ids:
            current = ScoredSpans(list(turn.prompt_ids))
            merged.append(current)
        else:
            current.token_ids += turn.prompt_ids[len(current.token_ids) :]
        start = len(current.token_ids)
        current.positions += range(start, start + len(turn.completion_ids))
        current.sampling_logprobs += turn.sampling_logprobs
        current.token_ids += turn.completion_ids
    return merged


def _is_recorded(turn: Turn) -> bool:
    ids, logprobs = turn.completion_ids, turn.sampling_logprobs
    return bool(turn.prompt_ids) and ids is not None and logprobs is not None and len(ids) == len(logprobs)
