"""Requests that are overdue by far are sent a second time; the first answer is taken.

A server that accepts a request and never answers would otherwise hold a rollout, and at the end the run, until
the request times out. The first request goes on, as it may only be slow and is being paid for; hence a bound on the
number of copies. After Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013), section "Hedged requests".
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Generic, NamedTuple, TypeVar

from stillhouse.inference.failures import RequestFailed

AnswerT = TypeVar("AnswerT")

_NUM_RECENT: Final = 256
_NUM_ENOUGH: Final = 16  # latencies needed before any is called late, and answers between two updates
_TIMES_P99: Final = 5.0
_HARMLESS: Final = 8  # copies that may be sent whatever their share: in a short run a few silent requests are many
_MAX_SHARE: Final = 0.05
"""Copies over requests at most: a provider that slows down for everybody must not be sent twice the load."""


class HedgedAnswer(NamedTuple, Generic[AnswerT]):
    answer: AnswerT
    by_copy: bool
    """Whether the copy gave it; the first request was then given up."""


class Hedging:
    """Latencies and copies of one collection.

    Args:
        enabled: off, no request is ever overdue.
        least_s: seconds after which an answer is overdue at the earliest.
    """

    def __init__(self, *, enabled: bool, least_s: float = 2.0) -> None:
        self.num_copies = 0
        self._enabled = enabled
        self._least_s = least_s
        self._num_answers = 0
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self.overdue_s: float | None = None
        """Seconds after which an answer is overdue: five times the 99th percentile of recent ones, or `least_s`; None
        until there are enough answers."""

    def note(self, latency_s: float) -> None:
        self._recent.append(latency_s)
        self._num_answers += 1
        if self._enabled and self._num_answers % _NUM_ENOUGH == 0:
            p99 = sorted(self._recent)[int(0.99 * len(self._recent))]
            self.overdue_s = max(self._least_s, _TIMES_P99 * p99)

    def until_copy_s(self, waited_s: float) -> float:
        """Seconds until a copy of a request that has waited `waited_s` may be sent; at most 0 for now."""
        if self.overdue_s is None:
            return self._least_s
        if waited_s < self.overdue_s:
            return self.overdue_s - waited_s
        return 0.0 if self.num_copies < max(_HARMLESS, _MAX_SHARE * self._num_answers) else self.overdue_s

    async def first_of(
        self, primary: Awaitable[AnswerT], copy: Callable[[], Coroutine[None, None, AnswerT]]
    ) -> HedgedAnswer[AnswerT]:
        """The answer of `primary` or of a copy sent when it was overdue, whichever is first.

        A copy that fails changes nothing; where `primary` fails while a copy is under way, the copy decides.

        Raises:
            RequestFailed: neither gave an answer.
        """
        if not self._enabled:
            return HedgedAnswer(await primary, by_copy=False)
        return await _Race(self, copy).run(primary)


class _Race(Generic[AnswerT]):
    """One request and its copy, which gets a task only when it is needed."""

    def __init__(self, hedging: Hedging, copy: Callable[[], Coroutine[None, None, AnswerT]]) -> None:
        self._hedging = hedging
        self._copy = copy
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._timer = self._loop.call_later(hedging.until_copy_s(0.0), self._send_copy)
        self._spare: asyncio.Task[AnswerT] | None = None
        self._interrupted = False

    async def run(self, primary: Awaitable[AnswerT]) -> HedgedAnswer[AnswerT]:
        self._owner = asyncio.current_task()
        try:
            return HedgedAnswer(await primary, by_copy=False)
        except asyncio.CancelledError:
            # Withdraws our own cancellation; the task may be cancelled by others as well.
            if self._spare is None or not self._interrupted or self._owner is None or self._owner.uncancel() > 0:
                raise
            return HedgedAnswer(self._spare.result(), by_copy=True)
        except RequestFailed:
            if self._spare is None or (self._spare.done() and self._spare.exception() is not None):
                raise
            self._owner = None
            return HedgedAnswer(await self._spare, by_copy=True)
        finally:
            self._owner = None
            self._timer.cancel()
            if self._spare is not None:
                self._spare.cancel()

    def _send_copy(self) -> None:
        wait_s = self._hedging.until_copy_s(self._loop.time() - self._sent_at)
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._send_copy)
            return
        self._hedging.num_copies += 1
        self._spare = self._loop.create_task(self._copy())
        self._spare.add_done_callback(self._copy_done)

    def _copy_done(self, spare: "asyncio.Task[AnswerT]") -> None:
        failed = spare.cancelled() or spare.exception() is not None
        if self._owner is None:
            return
        if failed:
            self._sent_at = self._loop.time()
            self._send_copy()
        else:
            self._interrupted = True
            self._owner.cancel()
