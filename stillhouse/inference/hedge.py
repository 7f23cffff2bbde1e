"""Requests that are overdue by far are sent a second time; the first answer is taken.

A server that accepts a request and never answers would otherwise hold a rollout, and at the end the run, until
the request times out. The first request goes on, as it may only be slow; hence a bound on the number of copies.
After Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013), section "Hedged requests".
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from stillhouse.inference.failures import RequestFailed

AnswerT = TypeVar("AnswerT")

_NUM_RECENT: Final = 256
_NUM_ENOUGH: Final = 16  # latencies needed before any is called late, and answers between two updates
_TIMES_P99: Final = 5.0
_HARMLESS: Final = 8  # copies that may be sent whatever their share: in a short run a few silent requests are many
_MAX_SHARE: Final = 0.05
"""Copies over requests at most: a provider that slows down for everybody must not be sent twice the load."""


class Hedging:
    """Latencies and copies of one collection; no request is overdue before `least_s`, and none if not `enabled`."""

    def __init__(self, *, enabled: bool, least_s: float = 2.0) -> None:
        self.enabled = enabled
        self.num_copies = 0
        self._least_s = least_s
        self._num_answers = 0
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self.overdue_s: float | None = None
        """Seconds after which an answer is overdue: five times the 99th percentile of recent ones, or `least_s`; None
        until there are enough answers."""

    def note(self, latency_s: float) -> None:
        self._recent.append(latency_s)
        self._num_answers += 1
        if self.enabled and self._num_answers % _NUM_ENOUGH == 0:
            p99 = sorted(self._recent)[int(0.99 * len(self._recent))]
            self.overdue_s = max(self._least_s, _TIMES_P99 * p99)

    def stop(self) -> None:
        """Call nothing overdue any more."""
        self.enabled, self.overdue_s = False, None

    def until_copy_s(self, waited_s: float) -> float:
        """Return the seconds until a copy of a request that has waited `waited_s` may be sent; at most 0 for now."""
        if self.overdue_s is None:
            return self._least_s
        if waited_s < self.overdue_s:
            return self.overdue_s - waited_s
        return 0.0 if self.num_copies < max(_HARMLESS, _MAX_SHARE * self._num_answers) else self.overdue_s


class Race(Generic[AnswerT]):
    """The block in which a request is sent, and its copy, which gets a task only when it is overdue.

        async with Race(hedging, send_copy) as race:
            race.answer = await send()

    Afterwards `answer` is the request's or the copy's, whichever was first. A copy that fails changes nothing; where
    the request fails while a copy is under way, the copy decides, and its failure is raised.
    """

    answer: AnswerT

    def __init__(self, hedging: Hedging, send_copy: Callable[[], Coroutine[None, None, AnswerT]]) -> None:
        self.by_copy = False
        """True if the copy answered; the request was then given up."""
        self._hedging = hedging
        self._send_copy = send_copy
        self._timer: asyncio.TimerHandle | None = None
        self._copy: asyncio.Task[AnswerT] | None = None
        self._interrupted = False

    async def __aenter__(self) -> Self:
        if self._hedging.enabled:
            self._owner = asyncio.current_task()
            self._loop = asyncio.get_running_loop()
            self._sent_at = self._loop.time()
            self._timer = self._loop.call_later(self._hedging.until_copy_s(0.0), self._send_if_overdue)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._timer is None:
            return False
        self._timer.cancel()
        owner, self._owner = self._owner, None
        if self._copy is None:
            return False
        try:
            # Withdraws our own cancellation; the task may be cancelled by others as well.
            if self._interrupted and isinstance(error, asyncio.CancelledError) and owner and not owner.uncancel():
                self.answer = self._copy.result()
            elif isinstance(error, RequestFailed) and not (self._copy.done() and self._copy.exception()):
                self.answer = await self._copy
            else:
                return False
        finally:
            self._copy.cancel()
        self.by_copy = True
        return True

    def _send_if_overdue(self) -> None:
        wait_s = self._hedging.until_copy_s(self._loop.time() - self._sent_at)
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._send_if_overdue)
            return
        self._hedging.num_copies += 1
        self._copy = self._loop.create_task(self._send_copy())
        self._copy.add_done_callback(self._end_of_copy)

    def _end_of_copy(self, copy: "asyncio.Task[AnswerT]") -> None:
        if self._owner is None:
            return
        if copy.cancelled() or copy.exception() is not None:
            self._sent_at = self._loop.time()
            self._send_if_overdue()
        else:
            self._interrupted = True
            self._owner.cancel()
