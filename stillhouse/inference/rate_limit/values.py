"""The values of rate control, and `TokenEstimates`: how many tokens a request will take."""

import math
from dataclasses import astuple, dataclass
from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits

_FIRST_CHARACTERS_PER_TOKEN: Final = 4.0  # rule of thumb for English text (platform.openai.com/tokenizer)
_QUANTILE: Final = 0.9
_QUICKNESS: Final = 0.1
_SMOOTHING: Final = 0.05
_MIN_WATCHED: Final = 40
_CLEARLY_MORE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits set by the user; None leaves it to what the endpoint accepts."""

    concurrency: int = 1000
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The size of a request as it is known before it is sent."""

    prompt_characters: int
    max_tokens: int


@dataclass(slots=True)
class Ticket:
    """Permission to send one request; settled exactly once."""

    epoch: int
    """The number of cuts when it was sent."""
    ahead: int
    """Requests that were in flight when it was sent."""
    sent_at: float
    tokens: float
    size: RequestSize
    probe: bool = False
    """True if it is the single request that tries whether a long gate may open."""
    num_sent: int = 0
    """Requests sent so far, this one included."""
    tokens_sent: float = 0.0
    """Tokens reserved so far, its own included."""
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: FailureKind | None
    retry_after_s: float | None = None
    limits: RateLimits | None = None
    scope: LimitScope | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ControlSnapshot:
    limit: int
    in_flight: int
    waiting: int
    reason: str
    """The limit that holds requests back, and how it is known."""
    requests_per_minute: float | None = None
    """Current pace; None while no such limit is known."""
    tokens_per_minute: float | None = None


@dataclass(frozen=True, slots=True)
class LearntLimits:
    """Limits that a later process may start from, above 0; None if unknown. Raise ValueError for others."""

    in_flight: int | None = None
    requests_per_second: float | None = None
    tokens_per_second: float | None = None

    def __post_init__(self) -> None:
        if any(known is not None and not known > 0 for known in astuple(self)):
            raise ValueError(f"{self}: expected numbers above 0")


@dataclass(slots=True)
class TokenEstimates:
    """Tokens of requests, learnt from answers; a quantile by stochastic approximation (Robbins and Monro, 1951)."""

    characters_per_token: float = _FIRST_CHARACTERS_PER_TOKEN
    completion_tokens: float | None = None
    """High quantile of the completions; None before the first."""
    mean_completion_tokens: float | None = None
    mean_tokens: float = 0.0
    """Mean of prompt and completion together."""

    reserves_all: bool = False
    """True if the provider counts `max_tokens` of a request whatever it samples (OpenAI's guide)."""
    _last_remaining: float = -math.inf
    _last_num_sent: int = 0

    def estimate(self, characters: int, max_tokens: int, *, surely: bool) -> float:
        """Return the tokens to reserve for a request: its maximum before the first answer, then what others took.

        `surely` takes a high quantile, for a limit that must not be exceeded, in place of the mean.
        """
        completion = self.completion_tokens if surely else self.mean_completion_tokens
        if completion is None or completion > max_tokens or self.reserves_all:
            completion = max_tokens
        return characters / self.characters_per_token + completion

    def watch(self, remaining: float, num_sent: int, max_tokens: int) -> None:
        """Judge by the tokens remaining after `num_sent` requests whether `max_tokens` of each was counted.

        They fall by what was taken less what was replenished, so the fall never overestimates.
        """
        fall, num = self._last_remaining - remaining, num_sent - self._last_num_sent
        if 0 < num < _MIN_WATCHED and fall >= 0.0:
            return
        self._last_remaining, self._last_num_sent = remaining, num_sent
        if num >= _MIN_WATCHED and fall > num * math.sqrt(self.mean_tokens * max(max_tokens, 1.0)):
            self.reserves_all = max_tokens > _CLEARLY_MORE * self.mean_tokens

    def learn(self, characters: int, prompt_tokens: int, completion_tokens: int) -> None:
        if prompt_tokens > 0 and characters > 0:
            self.characters_per_token += _SMOOTHING * (characters / prompt_tokens - self.characters_per_token)
        if self.completion_tokens is None or self.mean_completion_tokens is None:
            self.completion_tokens = self.mean_completion_tokens = float(completion_tokens)
            self.mean_tokens = float(prompt_tokens + completion_tokens)
            return
        self.mean_completion_tokens += _SMOOTHING * (completion_tokens - self.mean_completion_tokens)
        self.mean_tokens += _SMOOTHING * (prompt_tokens + completion_tokens - self.mean_tokens)
        step = _QUANTILE if completion_tokens > self.completion_tokens else _QUANTILE - 1.0
        self.completion_tokens = max(1.0, self.completion_tokens + _QUICKNESS * step * max(self.completion_tokens, 1.0))
