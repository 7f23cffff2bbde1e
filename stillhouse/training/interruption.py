"""SIGTERM as an exception that never tears an update of the weights apart."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class Interrupted(BaseException):
    """SIGTERM arrived. Derived from BaseException so that nothing which handles errors swallows it."""


class InterruptOnSigterm:
    """While entered, SIGTERM raises `Interrupted` in the main thread, at once or at the end of a `deferred` block."""

    def __init__(self) -> None:
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
        """A block that runs to its end; an interruption that arrived meanwhile is raised after it."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self._pending:
            raise Interrupted

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        if not self._deferred:
            raise Interrupted
