"""Where requests are let in: counts them, refuses what is too much, and gives up what nobody waits for."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.requests import Request

from stillhouse.serving.generation import Generation
from stillhouse.serving.protocol import ApiError
from stillhouse.serving.worker import Engine

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before it was answered."""


class AdmissionController:
    """Admission to one engine. Lives on the server's event loop.

    Args:
        engine: What does the work.
        max_batch: Sequences that run at once.
        max_pending: Sequences that may wait beyond those; more are refused with 429.
    """

    def __init__(self, engine: Engine, *, max_batch: int, max_pending: int) -> None:
        self.engine = engine
        self._max_inside = max_batch + max_pending
        self._inside = 0
        self._mean_seconds = 0.0
        self._counts: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()

    @asynccontextmanager
    async def admitted(self, num_sequences: int) -> AsyncIterator[None]:
        """Counts sequences in and out.

        Raises:
            ApiError: 429 when more would wait than may.
        """
        if self._inside + num_sequences > self._max_inside and self._inside:
            # Half of the mean answering time: by then room has come free on average.
            wait_s = max(0.05, self._mean_seconds / 2)
            raise ApiError(
                429,
                f"{self._inside} completions are running or waiting, at most {self._max_inside} may; "
                f"try again in {wait_s:.2f} s",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(math.ceil(wait_s)), "Retry-After-Ms": str(round(1000 * wait_s))},
            )
        self._counts["requests_accepted"] += 1
        self._inside += num_sequences
        start = time.monotonic()
        try:
            yield
        finally:
            self._inside -= num_sequences
            self._mean_seconds += 0.1 * (time.monotonic() - start - self._mean_seconds)

    async def wait_all(self, request: Request, futures: Sequence["Future[T]"]) -> list[T]:
        """Results of the engine's futures, in order.

        Raises:
            ClientGone: If the client leaves first; completions under way are abandoned.
        """
        results = asyncio.gather(*(asyncio.wrap_future(future) for future in futures))
        departure: asyncio.Future[None] = asyncio.ensure_future(_departure(request))
        awaited: set[asyncio.Future[Any]] = {results, departure}
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if results.done():
                return results.result()
            self._counts["requests_abandoned"] += 1
            raise ClientGone
        finally:
            departure.cancel()
            with suppress(asyncio.CancelledError):
                await departure
            if not results.done():
                results.cancel()
                with suppress(asyncio.CancelledError):
                    await results
                for future in futures:
                    self.engine.abandon(future)

    def answered(self, generations: Sequence[Generation], num_prompt_tokens: int) -> dict[str, int]:
        """Counts a finished request and returns its `usage`."""
        completion = sum(len(generation.completion_ids) for generation in generations)
        self._counts["requests_completed"] += 1
        self._counts["prompt_tokens"] += num_prompt_tokens
        self._counts["completion_tokens"] += completion
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": num_prompt_tokens + completion,
        }

    def rejected(self, status: int) -> None:
        """Counts a request that was answered with an error."""
        self._rejected[str(status)] += 1

    def stats(self) -> dict[str, Any]:
        """Counters since the start, for the page /v1/stats."""
        names = ("requests_accepted", "requests_completed", "requests_abandoned", "prompt_tokens", "completion_tokens")
        return {
            **{name: self._counts[name] for name in names},
            "requests_rejected": dict(self._rejected),
            "sequences_inside": self._inside,
        }


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
