"""What goes in and out of rate control."""

from dataclasses import dataclass

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits


@dataclass(frozen=True, slots=True)
class Caps:
    """What the user allows at most; None leaves it to what the endpoint accepts."""

    concurrency: int = 1000
    """Requests in flight."""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Prompts and completions together."""


@dataclass(frozen=True, slots=True)
class RequestSize:
    """What is known of a request before it is sent."""

    prompt_characters: int
    max_tokens: int


@dataclass(slots=True)
class Ticket:
    """Leave to send one request; settled exactly once."""

    epoch: int
    """The number of cuts when it was sent."""
    ahead: int
    """Requests that were in flight when it was sent."""
    sent_at: float
    tokens: float
    """Tokens reserved for it."""
    characters: int = 0
    """Characters of its prompt."""
    max_tokens: int = 0
    """The most its completion may have."""
    probe: bool = False
    """Whether it is the single request that tries whether a long gate may open."""
    num_sent: int = 0
    """Requests sent up to and with it."""
    tokens_sent: float = 0.0
    """Tokens reserved up to and with it."""
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request ended."""

    kind: FailureKind | None
    """None for success."""
    retry_after_s: float | None = None
    limits: RateLimits | None = None
    """What the answer's headers say."""
    scope: LimitScope | None = None
    """What a refusal says there was too much of; None where it does not say."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ControlSnapshot:
    """The state as a person wants to see it."""

    limit: int
    """Requests that may be in flight."""
    in_flight: int
    waiting: int
    gate_s: float
    """Seconds until the gate opens; 0 when it is open."""
    reason: str
    """What holds requests back, and how that is known."""
    num_rate_limited: int
    num_cuts: int
    requests_per_minute: float | None = None
    """The pace held; None while no such limit is known."""
    tokens_per_minute: float | None = None


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a later process may start from; None for what is unknown."""

    in_flight: int | None = None
    requests_per_second: float | None = None
    tokens_per_second: float | None = None
