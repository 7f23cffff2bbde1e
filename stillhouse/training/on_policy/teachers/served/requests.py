"""Requests to a teacher's server: bounded batches, several at once, tried again by halves.

What a server cannot do with many sequences (it runs out of memory, answers late, refuses one of them) it may do with
fewer, so a batch that fails is cut in two. One that is alone waits and is tried again, unless trying is of no use.
"""

import logging
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.training.on_policy.patience import Patience

logger = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")

_MAX_ATTEMPTS: Final = 6
"""Tries of one sequence alone; to be told to slow down is none."""
_HALVED: Final = frozenset({FailureKind.TRANSIENT, FailureKind.STALL, FailureKind.PERMANENT})
_HOPELESS: Final = frozenset({FailureKind.PERMANENT, FailureKind.CONTENT, FailureKind.AUTH, FailureKind.QUOTA})


class Requests(Generic[ItemT, AnswerT]):
    """Sends items in batches, in threads.

    Args:
        send: asks for one batch; one answer for each item, or `RequestFailed`.
        size: tokens of an item.
        batch_tokens: most tokens of one batch; a larger item goes alone.
        max_in_flight: batches at once.
        sleep: waits so many seconds, and returns early when `stop` is called; None waits for real.
        rng: draws the jitter of waits.
    """

    def __init__(
        self,
        send: Callable[[Sequence[ItemT]], list[AnswerT]],
        size: Callable[[ItemT], int],
        *,
        batch_tokens: int,
        max_in_flight: int,
        sleep: Callable[[float], object] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._send = send
        self._size = size
        self._batch_tokens = batch_tokens
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self._rng = rng or random.Random()
        self._pool = ThreadPoolExecutor(max_in_flight, thread_name_prefix="teacher")

    def start(self, items: Sequence[ItemT]) -> Future[list[AnswerT]]:
        """Asks for all items; the answers in their order, or the first failure that is final: `RequestFailed`."""
        return joined([self._pool.submit(self._ask, batch) for batch in self._batches(items)])

    def stop(self) -> None:
        """Sends nothing more; what is under way ends with its request."""
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _batches(self, items: Sequence[ItemT]) -> list[list[ItemT]]:
        batches: list[list[ItemT]] = []
        room = 0
        for item in items:
            size = self._size(item)
            if size > room:
                batches.append([])
                room = self._batch_tokens
            batches[-1].append(item)
            room -= size
        return batches

    def _ask(self, batch: Sequence[ItemT]) -> list[AnswerT]:
        patience = Patience(_MAX_ATTEMPTS, self._rng)
        while True:
            try:
                return self._send(batch)
            except RequestFailed as error:
                failure = error.failure
                is_cut = len(batch) > 1 and failure.kind in _HALVED and not failure.unreachable
                wait_s = patience.wait_s(failure)
                if not is_cut and (failure.kind in _HOPELESS or wait_s is None):
                    raise
                if failure.kind is not FailureKind.PERMANENT:
                    self._wait(failure, wait_s or 0.0, len(batch))
                if self._stopped.is_set():
                    raise
            if is_cut:
                middle = len(batch) // 2
                return self._ask(batch[:middle]) + self._ask(batch[middle:])

    def _wait(self, failure: Failure, seconds: float, num_items: int) -> None:
        logger.warning(
            "a teacher's server failed for %d sequences: %s; next try in %.1f s", num_items, failure.message, seconds
        )
        self._sleep(seconds)


def joined(parts: Sequence[Future[list[AnswerT]]]) -> Future[list[AnswerT]]:
    """The results of all parts in their order, or the first failure among them, as soon as it is known."""
    whole: Future[list[AnswerT]] = Future()
    lock = threading.Lock()
    missing = len(parts)

    def one_more(part: Future[list[AnswerT]]) -> None:
        nonlocal missing
        with lock:
            missing -= 1
            if whole.done():
                return
            if part.cancelled():
                whole.cancel()
            elif (error := part.exception()) is not None:
                whole.set_exception(error)
            elif missing == 0:
                whole.set_result([answer for other in parts for answer in other.result()])

    for part in parts:
        part.add_done_callback(one_more)
    if not parts:
        whole.set_result([])
    return whole
