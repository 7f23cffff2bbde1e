"""`Ledger`: what a run has spent and reserved, its wall time, and the errors when its budget is spent."""

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached
from stillhouse.inference.budget.spend import ZERO, Amounts, Spend
from stillhouse.inference.price import PICO

_FIRST: Final = 1.0
"""Tokens a character before anything is known. English has about 0.25; few texts in any language have more than 1."""
_MIN_SEEN: Final = 20
_MIN_CHARACTERS: Final = 200
_MARGIN: Final = 1.25  # times the highest ratio seen: the next prompt may be worse than all before
_TEMPLATE: Final = 64  # tokens a chat template adds however short the prompt is
_AGAIN = "and run the same command again: what was paid for is used again"
_LOG = logging.getLogger(__name__)
_SECONDS_PER_HOUR: Final = 3600.0


class PromptTokens:
    """An estimate that leans high: the highest ratio of tokens to characters seen, and a quarter more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest = 0.0
        self._num_seen = 0

    def learn(self, characters: int, tokens: int) -> None:
        """Learn from one prompt; a short one says more of the template than of the text."""
        if characters < _MIN_CHARACTERS:
            return
        with self._lock:
            self._num_seen += 1
            self._highest = max(self._highest, (tokens - _TEMPLATE) / characters)

    def most(self, characters: int) -> int:
        ratio = _FIRST if self._num_seen < _MIN_SEEN else self._highest * _MARGIN
        return math.ceil(characters * ratio) + _TEMPLATE


def _passed(config: BudgetConfig, counted: Spend, worst: Spend) -> Iterator[tuple[str, str]]:
    """Yield the field and the reason for each cap that the request could pass."""
    for name, unit in (("requests", "requests"), ("tokens", "tokens"), ("usd", "USD")):
        cap, spent, more = getattr(config, f"max_{name}"), getattr(counted, name) or 0, getattr(worst, name) or 0
        if cap is not None and spent + more > cap:
            over = f" ({spent - cap:.6g} over, by answers that cost more than foreseen)" if spent > cap else ""
            reason = f"{spent:.6g} of {cap:.6g} {unit} are spent{over}, and one more request may take {more:.6g}"
            yield f"budget.max_{name}", reason


@dataclass(slots=True, eq=False)
class _Waiter:
    worst: Amounts
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[None]"


class Ledger:
    """Room below the caps of a run, shared by all its collections. Safe to use from several threads and event loops.

    Requests are served in order of arrival, so that a large one does not starve.
    """

    def __init__(self, config: BudgetConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._caps = (
            math.inf if config.max_requests is None else config.max_requests,
            math.inf if config.max_tokens is None else config.max_tokens,
            math.inf if config.max_usd is None else round(config.max_usd * PICO),
        )
        self._lock = threading.Lock()
        self._waiters: deque[_Waiter] = deque()
        self.counted = ZERO
        """Only ever grows."""
        self.possible = ZERO
        """The part of `counted` that is an upper bound."""
        self.reserved = ZERO
        self.usd_known = True
        """True if the cost of everything counted is known, or bounded."""
        self.prompt_tokens = PromptTokens()
        self._time_lock = threading.Lock()
        self._num_running = 0
        self._started = 0.0
        self._ran_s = 0.0
        self._has_logged_excess = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count wall time while at least one such block is open."""
        with self._time_lock:
            if self._num_running == 0:
                self._started = self._clock()
            self._num_running += 1
        try:
            yield
        finally:
            with self._time_lock:
                self._num_running -= 1
                if self._num_running == 0:
                    self._ran_s += self._clock() - self._started

    def wall_s(self) -> float:
        """Return the seconds in which at least one collection ran."""
        with self._time_lock:
            return self._ran_s + (self._clock() - self._started if self._num_running else 0.0)

    def note_excess(self, excess: Amounts) -> None:
        """Log, once in a run, an answer that cost more than its request reserved."""
        if not self._has_logged_excess:
            self._has_logged_excess = True
            _LOG.warning(
                "an answer took %d tokens and %.4g USD more than its request had reserved; caps may be passed by as "
                "much for each request in flight",
                excess.tokens,
                excess.spend().usd,
            )

    async def reserve(self, worst: Amounts) -> None:
        """Wait until `worst` fits beside all that is counted and reserved; raise BudgetReached if it never can."""
        with self._lock:
            if (error := self._error(worst)) is not None:
                raise error
            if not self._waiters and self._take(worst):
                return
            loop = asyncio.get_running_loop()
            waiter = _Waiter(worst, loop, loop.create_future())
            self._waiters.append(waiter)
            # Those before it may belong to event loops that are gone.
            self._admit()
        try:
            await waiter.future
        except asyncio.CancelledError:
            is_granted = waiter.future.done() and not waiter.future.cancelled() and not waiter.future.exception()
            self.settle(worst if is_granted else ZERO, ZERO, ZERO)
            raise

    def settle(self, worst: Amounts, spent: Amounts, possible: Amounts) -> None:
        """Free what was reserved and count what was spent, of which `possible` is an upper bound."""
        with self._lock:
            self.reserved = self.reserved.minus(worst)
            self.counted = self.counted.plus(spent)
            self.possible = self.possible.plus(possible)
            if self._waiters:
                self._admit()

    def _fits(self, amounts: Amounts) -> bool:
        return all(amount <= cap for amount, cap in zip(amounts, self._caps, strict=True))

    def _take(self, worst: Amounts) -> bool:
        reserved = self.reserved.plus(worst)
        if not self._fits(self.counted.plus(reserved)):
            return False
        self.reserved = reserved
        return True

    def _error(self, worst: Amounts) -> BudgetReached | None:
        """Return the error for a request that can never be sent, whatever those in flight turn out to cost."""
        max_hours = self._config.max_hours
        if max_hours is not None and (wall_s := self.wall_s()) >= max_hours * _SECONDS_PER_HOUR:
            return BudgetReached(
                f"the budget is spent: rollouts have taken {wall_s / _SECONDS_PER_HOUR:.3g} of {max_hours:g} hours. "
                f"Raise budget.max_hours {_AGAIN}"
            )
        if self._fits(self.counted.plus(worst)):
            return None
        passed = list(_passed(self._config, self.counted.spend(), worst.spend()))
        message = f"the budget is spent: {'; '.join(reason for _, reason in passed)}. "
        if (possible := self.possible.spend()).requests:
            money = f" and {possible.usd:.4g} USD" if possible.usd else ""
            message += (
                f"(Of that, {possible.tokens} tokens{money} are the worst case of {possible.requests} "
                "requests that did not say what they cost.) "
            )
        return BudgetReached(message + f"Raise {' and '.join(field for field, _ in passed)} {_AGAIN}")

    def _admit(self) -> None:
        """Admit or refuse requests from the head of the queue until one has to wait, under the lock."""
        while self._waiters:
            waiter = self._waiters[0]
            if not (waiter.future.done() or waiter.loop.is_closed()):
                error = self._error(waiter.worst)
                if error is None and not self._take(waiter.worst):
                    return
                self._deliver_soon(waiter, error)
            self._waiters.popleft()

    def _deliver_soon(self, waiter: _Waiter, error: BudgetReached | None) -> None:
        try:
            waiter.loop.call_soon_threadsafe(self._deliver, waiter, error)
        except RuntimeError:  # its loop was closed a moment ago
            if error is None:
                self.reserved = self.reserved.minus(waiter.worst)

    def _deliver(self, waiter: _Waiter, error: BudgetReached | None) -> None:
        if not waiter.future.done():
            if error is None:
                waiter.future.set_result(None)
            else:
                waiter.future.set_exception(error)
        elif error is None:
            self.settle(waiter.worst, ZERO, ZERO)
