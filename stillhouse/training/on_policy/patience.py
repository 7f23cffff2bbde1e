"""How long one request to a server is tried again."""

import random
from typing import Final

from stillhouse.inference.failures import Failure, FailureKind
from stillhouse.inference.retry import backoff_s

_MAX_REFUSED_S: Final = 1800.0
"""Longest wait in all because a server has too much to do."""


class Patience:
    """What is left of it for one request.

    Args:
        max_attempts: tries; to be told to slow down is none.
        rng: draws the jitter of waits.
    """

    def __init__(self, max_attempts: int, rng: random.Random) -> None:
        self._left = max_attempts
        self._rng = rng
        self._num_failed = 0
        self._refused_s = 0.0

    def wait_s(self, failure: Failure) -> float | None:
        """Seconds to wait after a failure before the next try; None for no more."""
        is_refused = failure.kind is FailureKind.RATE
        self._num_failed += 1
        self._left -= not is_refused
        if self._left <= 0 or self._refused_s > _MAX_REFUSED_S:
            return None
        seconds = backoff_s(self._num_failed, failure.retry_after_s, self._rng)
        self._refused_s += seconds * is_refused
        return seconds
