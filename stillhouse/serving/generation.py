"""What is asked of whoever samples completions, and what comes of it: `GenerationRequest`, `Generation`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GenerationRequest:
    """What to sample."""

    prompt_ids: Sequence[int]
    max_tokens: int
    """Tokens sampled at most; fewer where the model's context ends before."""
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the completion."""
    processed_logprobs: bool = False
    """Give log-probabilities of the distribution as `top_p` leaves it. Off, `top_p` does not show in them, which is
    what OpenAI's API promises."""


@dataclass(frozen=True)
class Generation:
    """A finished completion."""

    completion_ids: list[int]
    """With the stop token at the end, where one was sampled."""
    logprobs: list[float]
    """One for each of `completion_ids`, under softmax(logits / temperature), untempered where temperature is 0;
    renormalised over the nucleus where the request wants `processed_logprobs`."""
    finish_reason: Literal["stop", "length"]
