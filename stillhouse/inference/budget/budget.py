"""`Budget`: what a run may spend, kept by reserving the worst case of a request before it is sent.

Without a reservation every request in flight would see the same money left, and all of them would spend it. So a
request first reserves the most it can cost; once it is answered, its actual cost is counted and the rest is free again.
As long as no answer exceeds its reservation, `counted + reserved <= cap` holds for every cap, whatever the order of
events. An answer that exceeds it is counted as it is, and the error of a cap that is passed says by how much.

How each end of a request is counted:

    answered with usage          its usage
    answered without usage       the worst case, as possibly billed
    answered without cost        its usage, and the worst case in money, as possibly billed
    refused with an HTTP status  the request alone: endpoints bill what they answer
    cut off, timed out           the worst case, as possibly billed: the endpoint may have sampled to the end
    never sent                   nothing

Wall time is not reserved: it is checked before each request, and requests in flight are not cancelled.
"""

import threading
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from stillhouse.config import BudgetConfig
from stillhouse.inference.budget.ledger import Ledger
from stillhouse.inference.budget.spend import ZERO, Amounts, Spend
from stillhouse.inference.price import Price


@dataclass(slots=True)
class _Collection:
    """Answers of one collection. A replayed one is counted only where `seen` exceeds `counted`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    counted: Amounts = ZERO
    seen: Amounts = ZERO
    """Usage seen so far in this attempt."""


class Budget:
    """The caps of one run and what has gone against them. Safe to use from several threads and event loops at once.

    Without any cap `reserve`, `settle` and `count_replayed` do nothing. Where `price` is None no money is counted
    (`require_prices` rules that out where it matters).
    """

    def __init__(self, config: BudgetConfig, price: Price | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._price = price
        self._unlimited = config == BudgetConfig()
        self.ledger = Ledger(config, clock)
        self._collection = _Collection()

    def part(self, price: Price | None) -> "Budget":
        """Return a budget for another collection of the same run, of a model at `price`; caps and counts are shared."""
        part = copy(self)
        part._price = price
        part._collection = _Collection()
        return part

    def start_again(self) -> None:
        """Call before an interrupted collection runs again, so that answers replayed to it are not counted twice."""
        with self._collection.lock:
            self._collection.seen = ZERO

    def worst_case(self, prompt_characters: int, max_tokens: int) -> Spend:
        """Return the most a request can cost; a character counts as a token until answers have shown better."""
        prompt_tokens = self.ledger.prompt_tokens.most(prompt_characters)
        usd = None if self._price is None else self._price.worst(prompt_tokens, max_tokens)
        return Spend(1, prompt_tokens + max_tokens, usd)

    async def reserve(self, worst: Spend) -> Spend:
        """Wait until a request may be sent that costs at most `worst`, and return that for `settle`; raise
        BudgetReached if nothing in flight can free the room.
        """
        if not self._unlimited:
            await self.ledger.reserve(Amounts.of(worst))
        return worst

    def settle(self, worst: Spend, spent: Spend | None) -> None:
        """End a reservation, once; `spent` is None where the cost is unknown (see the module's table)."""
        if self._unlimited:
            return
        reserved = Amounts.of(worst)
        if spent is None:
            if worst.usd is None:
                self.ledger.usd_known = False
            self.ledger.settle(reserved, reserved, reserved)
            return
        counted, possible = Amounts.of(spent), ZERO
        if spent.usd is None and worst.usd is not None:
            possible = Amounts(spent.requests, 0, reserved.picodollars)
            counted = counted.plus(Amounts(0, 0, reserved.picodollars))
        elif spent.usd is None:
            self.ledger.usd_known = False
        if (excess := counted.above(reserved)) != ZERO:
            self.ledger.note_excess(excess)
        if spent.tokens:
            # Answers are replayed with their own usage, without what was added as possibly billed.
            amounts = Amounts.of(spent)
            with self._collection.lock:
                self._collection.counted = self._collection.counted.plus(amounts)
                self._collection.seen = self._collection.seen.plus(amounts)
        self.ledger.settle(reserved, counted, possible)

    def count_replayed(self, spent: Spend) -> None:
        """Count an answer that an earlier attempt paid for."""
        if self._unlimited:
            return
        amounts = Amounts.of(spent)
        with self._collection.lock:
            self._collection.seen = self._collection.seen.plus(amounts)
            fresh = self._collection.seen.above(self._collection.counted)
            self._collection.counted = self._collection.counted.plus(fresh)
        if spent.usd is None:
            self.ledger.usd_known = False
        self.ledger.settle(ZERO, fresh, ZERO)

    @property
    def counted(self) -> Spend:
        """Return the spend against the caps: answers, those of earlier attempts, and what was possibly billed."""
        return self.ledger.counted.spend(usd_known=self.ledger.usd_known)


_shared: Final[dict[str, dict[str, Budget]]] = {}
_lock: Final = threading.Lock()


def shared_budget(run_id: str, part: str, config: BudgetConfig, price: Price | None) -> Budget:
    """Return the process's budget of a run, as one of its collections (`part`) sees it, at the price of its model.

    A part that exists already was interrupted and runs again: answers replayed to it are not counted twice. The caps
    are those of the run's first part.
    """
    with _lock:
        parts = _shared.setdefault(run_id, {})
        budget = parts.get(part)
        if budget is not None:
            budget.start_again()
        elif parts:
            budget = parts[part] = next(iter(parts.values())).part(price)
        else:
            budget = parts[part] = Budget(config, price)
        return budget


def remaining_budget(run_id: str, config: BudgetConfig) -> BudgetConfig:
    """Return the caps less what the run has counted so far, for a process of its own; hours are not handed on.

    A cap that is used up becomes the smallest that a config takes, which holds no request.
    """
    with _lock:
        part = next(iter(_shared.get(run_id, {}).values()), None)
    counted = Spend() if part is None else part.counted
    return BudgetConfig(
        max_usd=None if config.max_usd is None else max(config.max_usd - (counted.usd or 0.0), 1e-12),
        max_tokens=None if config.max_tokens is None else max(config.max_tokens - counted.tokens, 1),
        max_requests=None if config.max_requests is None else max(config.max_requests - counted.requests, 1),
    )


def forget_budgets(run_id: str) -> None:
    """Drop a run's budget; call it when the flow run has ended."""
    with _lock:
        _shared.pop(run_id, None)
