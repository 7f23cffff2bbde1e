"""SIGTERM as an exception that never interrupts an update of the weights."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from stillhouse.training.ranks import Ranks


class Interrupted(BaseException):
    """SIGTERM arrived. Derived from BaseException so that handlers of errors do not catch it."""


class InterruptOnSigterm:
    """While entered, SIGTERM raises `Interrupted` in the main thread, at once or at the end of a `deferred` block.

    With several ranks only `raise_if_any` raises it: the others would wait for a rank that left alone.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._deferred = False
        self._pending = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay an interruption that arrives within the block to its end."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self._pending and self._ranks.size == 1:
            raise Interrupted

    def raise_if_any(self) -> None:
        """Raise `Interrupted` in every rank as soon as one has received SIGTERM; collective."""
        if self._ranks.size == 1:
            return
        _, flags = self._ranks.sum_and_max({}, {"pending": float(self._pending)})
        if flags["pending"]:
            raise Interrupted

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # A second SIGTERM would interrupt the checkpoint that the first one asked for.
        is_first, self._pending = not self._pending, True
        if is_first and not self._deferred and self._ranks.size == 1:
            raise Interrupted
