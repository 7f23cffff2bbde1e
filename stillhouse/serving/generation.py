"""Requests to a sampler of completions, their state and their results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import torch

from stillhouse.serving.sampling import Draw

_UNIFORMS_AT_ONCE: Final = 64


@dataclass(frozen=True)
class GenerationRequest:
    """A completion to sample."""

    prompt_ids: Sequence[int]
    max_tokens: int
    """Limit of sampled tokens; the model's context may end earlier."""
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the completion."""
    processed_logprobs: bool = False
    """Whether log-probabilities are those after `top_p`; OpenAI's API gives those before."""


@dataclass(frozen=True)
class Generation:
    """A finished completion."""

    completion_ids: list[int]
    """Includes the stop token, if one was sampled."""
    logprobs: list[float]
    """One for each of `completion_ids`, under softmax(logits / temperature) or, at temperature 0, softmax(logits);
    renormalised over the nucleus with `processed_logprobs`."""
    finish_reason: Literal["stop", "length"]


@dataclass
class RunningRequest:
    """A request of a generator and what it has sampled so far."""

    handle: int
    request: GenerationRequest
    max_tokens: int
    rng: torch.Generator
    num_cached: int = 0
    """Tokens of prompt and completion whose keys and values the launched passes put into the slot."""
    completion: list[int] = field(default_factory=list)
    """Tokens that the host has read."""
    logprobs: list[float] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)
    is_done: bool = False

    def next_draw(self) -> Draw:
        """Random number and sampling parameters of the next token."""
        if not self.uniforms:
            block = torch.rand(_UNIFORMS_AT_ONCE, dtype=torch.float64, generator=self.rng)
            self.uniforms = block.flip(0).tolist()
        request = self.request
        return Draw(self.uniforms.pop(), request.temperature, request.top_p, request.processed_logprobs)

    @property
    def is_fully_sampled(self) -> bool:
        """Whether the last token has been sampled, though perhaps not read."""
        return self.num_cached - len(self.request.prompt_ids) + 1 >= self.max_tokens

    def finish_reason(self) -> Literal["stop", "length"] | None:
        """Why the tokens read end the completion; None while they do not."""
        if self.completion[-1] in self.request.stop_ids:
            return "stop"
        return "length" if len(self.completion) >= self.max_tokens else None
