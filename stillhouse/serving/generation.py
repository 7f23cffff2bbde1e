"""Requests to a sampler of completions, their state and their results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
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
    """True if log-probabilities are those after `top_p`; OpenAI's API gives those before."""
    on_token: Callable[[int], bool] | None = None
    """Called with each token by the thread that steps; True ends the completion."""
    num_best: int = 0
    """Most probable tokens to return at each sampled one."""


@dataclass(frozen=True)
class Generation:
    """A finished completion."""

    completion_ids: list[int]
    """Includes the stop token, if one was sampled."""
    logprobs: list[float]
    """One for each of `completion_ids`, under softmax(logits / temperature) or, at temperature 0, softmax(logits);
    renormalised over the nucleus with `processed_logprobs`."""
    finish_reason: Literal["stop", "length"]
    """`stop` also where `on_token` ended it."""
    best_ids_NK: np.ndarray | None = None
    """int32 [tokens, num_best], best first; None where none were asked for."""
    policy_versions: Sequence[int] = ()
    """Updates of the weights that sampled each of `completion_ids`, where these change while an engine samples."""


@dataclass
class RunningRequest:
    """A request of a generator and what it has sampled so far."""

    handle: int
    request: GenerationRequest
    max_tokens: int
    rng: torch.Generator
    num_cached: int = 0
    """Tokens of prompt and completion whose keys and values are in the slot."""
    completion: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    best: list[np.ndarray] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)

    def next_draw(self) -> Draw:
        """Return the random number and sampling parameters of the next token."""
        if not self.uniforms:
            block = torch.rand(_UNIFORMS_AT_ONCE, dtype=torch.float64, generator=self.rng)
            self.uniforms = block.flip(0).tolist()
        request = self.request
        return Draw(self.uniforms.pop(), request.temperature, request.top_p, request.processed_logprobs)

    def read(self, token: int, logprob: float, best_K: np.ndarray) -> Literal["stop", "length"] | None:
        """Take in a sampled token; return why it ends the completion, or None."""
        self.completion.append(token)
        self.logprobs.append(logprob)
        request = self.request
        if request.num_best:
            self.best.append(best_K[: request.num_best])
        is_ended = request.on_token is not None and request.on_token(token)
        if is_ended or token in request.stop_ids:
            return "stop"
        return "length" if len(self.completion) >= self.max_tokens else None
