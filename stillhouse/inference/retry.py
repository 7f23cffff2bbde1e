"""Retries: the failures after which a request is tried again, and the wait before that."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from stillhouse.inference.failures import Failure, FailureKind, RequestFailed

_BASE_S: Final = 1.0
_CAP_S: Final = 60.0
_MAX_RETRY_AFTER_S: Final = 600.0
_OUTAGE_CAP_S: Final = 10.0
_MAX_MALFORMED: Final = 2
"""Attempts whose answer the endpoint could not read."""
_FINAL: Final = frozenset(
    {FailureKind.PERMANENT, FailureKind.CONTENT, FailureKind.LENGTH, FailureKind.AUTH, FailureKind.QUOTA}
)


ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Effects:
    """The outside world as the engine meets it; tests bring their own."""

    clock: Callable[[], float] = time.monotonic
    """Seconds that never go back."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    """Draws the jitter of waits; nothing that is kept depends on it."""


MAX_OUTAGE_S: Final = 600.0
"""How long an endpoint that answered before is waited for: the restart of most model servers."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_attempts: int
    """Attempts that fail otherwise than by a rate limit."""
    max_refused_s: float = math.inf
    """Longest time during which a request is refused by rate limits."""
    waits_if_refused: bool = True
    """Back off after a rate limit, too; False where a `Controller` holds the next attempt back."""
    max_outage_s: float = 0.0
    """Longest time during which no connection can be made and that costs no attempts."""


class Tries:
    """The failed tries of one request, of which those are final, too, that `is_final` says."""

    def __init__(
        self, policy: RetryPolicy, effects: Effects, is_final: Callable[[Failure], bool] | None = None
    ) -> None:
        self._policy = policy
        self._effects = effects
        self._is_final = is_final
        self._num_failed = self._num_refused = self._num_unreachable = self._num_malformed = 0
        self._refused_at: float | None = None
        self._unreachable_at: float | None = None

    def wait_s(self, failure: Failure) -> float | None:
        """Return the seconds to wait after this failure; None where the request has failed for good."""
        if failure.kind in _FINAL or (self._is_final is not None and self._is_final(failure)):
            return None
        now, policy = self._effects.clock(), self._policy
        if failure.kind in (FailureKind.RATE, FailureKind.BUSY):
            self._num_refused += 1
            self._refused_at = now if self._refused_at is None else self._refused_at
            if now - self._refused_at > policy.max_refused_s:
                return None
            if failure.kind is FailureKind.RATE and not policy.waits_if_refused:
                return 0.0
        elif failure.unreachable and policy.max_outage_s > 0.0:
            self._num_unreachable += 1
            self._unreachable_at = now if self._unreachable_at is None else self._unreachable_at
            if now - self._unreachable_at > policy.max_outage_s:
                return None
            return min(backoff_s(self._num_unreachable, None, self._effects.rng), _OUTAGE_CAP_S)
        else:
            self._num_failed += 1
            self._unreachable_at, self._num_unreachable = None, 0
            self._num_malformed += failure.kind is FailureKind.MALFORMED
            if self._num_failed >= policy.max_attempts or self._num_malformed >= _MAX_MALFORMED:
                return None
        is_refused = policy.waits_if_refused or failure.kind is FailureKind.BUSY
        num_waits = self._num_failed + self._num_refused * is_refused
        return backoff_s(num_waits, failure.retry_after_s, self._effects.rng)


async def with_retries(
    attempt: Callable[[], Awaitable[ResultT]],
    policy: RetryPolicy,
    effects: Effects,
    *,
    is_final: Callable[[Failure], bool] | None = None,
    on_retry: Callable[[Failure, float], None] = lambda failure, wait_s: None,
) -> ResultT:
    """Return the result of the first attempt that succeeds, of a request that costs nothing and that nothing limits.

    `on_retry` is called before each wait with the failure and the seconds. Completions go through `Requester`. Raise
    RequestFailed if the failure of the last attempt.
    """
    tries = Tries(policy, effects, is_final)
    while True:
        try:
            return await attempt()
        except RequestFailed as failed:
            wait_s = tries.wait_s(failed.failure)
            if wait_s is None:
                raise
            on_retry(failed.failure, wait_s)
        await effects.sleep(wait_s)


def backoff_s(attempt: int, retry_after_s: float | None, rng: random.Random) -> float:
    """Return the seconds to wait before the next try: uniform in [0, min(60, 2^(attempt - 1))], no less than
    Retry-After.

    Full jitter after Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015). A Retry-After above ten
    minutes counts as ten: the next try will show whether the endpoint meant it. `attempt` counts the failed tries,
    from 1.
    """
    wait = rng.uniform(0.0, min(_CAP_S, _BASE_S * 2.0 ** min(attempt - 1, 30)))
    return max(wait, min(retry_after_s or 0.0, _MAX_RETRY_AFTER_S))
