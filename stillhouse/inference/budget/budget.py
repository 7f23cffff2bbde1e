"""`Budget`: what a run may spend on the teacher, kept by reserving the worst case of a request before it is sent.

Without a reservation every request in flight would see the same money left, and all of them would spend it. So a
request first reserves the most it can cost; once it is answered, what it did cost is counted and the rest is free
again. As long as no answer exceeds its reservation, `counted + reserved <= cap` holds for every cap, whatever the order
of events. An answer that does exceed it is counted as it is, and the error of a cap that is passed says by how much.

How each end of a request is counted:

    answered, usage told         what it told
    answered, usage not told     the worst case, as possibly billed
    answered, cost not known     the tokens told, and the worst case in money, as possibly billed
    refused with an HTTP status  the request alone: endpoints bill what they answer
    cut off, timed out           the worst case, as possibly billed: the endpoint may have sampled to the end
    never sent                   nothing

Wall time is not reserved: it is looked at before each request, and those in flight then end by themselves.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from stillhouse.config import BudgetConfig
from stillhouse.inference.budget.ledger import NOTHING, ZERO, Amounts, Spend
from stillhouse.inference.budget.state import RunState
from stillhouse.inference.endpoint import Price


@dataclass(slots=True, eq=False)
class Reservation:
    """Leave to send one request; `Budget.settle` takes it back, once."""

    worst: Spend
    amounts: Amounts
    is_open: bool = True


_FREE: Final = Reservation(NOTHING, ZERO)


@dataclass(frozen=True, slots=True)
class BudgetSnapshot:
    """The state as a person wants to see it."""

    counted: Spend
    """Against the caps: answers, answers of earlier attempts, and what was possibly billed."""
    possibly_billed: Spend
    """The part of `counted` that is an upper bound, and how many requests it stands for."""
    reserved: Spend
    """For requests in flight."""
    waiting: int
    """Requests that wait for others to settle."""
    wall_s: float
    """Seconds in which rollouts were collected."""


@dataclass(slots=True)
class _Own:
    """What one collection has in the run's book, and what of it its present attempt has come by.

    A replay counts only where the second outgrows the first.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: Amounts = ZERO
    heard: Amounts = ZERO


class Budget:
    """The caps of one run and what has gone against them. Safe to use from several threads and event loops at once.

    Without any cap `reserve`, `settle` and `count_replayed` do nothing.

    Args:
        config: the caps.
        price: for the worst case of a request in money; None when it is unknown, and no money is then counted. Whoever
            asks what may be dear calls `require_prices` first.
        clock: seconds that never go back.
    """

    def __init__(self, config: BudgetConfig, price: Price | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._price = price
        self._unlimited = config == BudgetConfig()
        self._run = RunState(config, clock)
        self._own = _Own()

    def part(self, price: Price | None) -> "Budget":
        """A budget for one more collection of the same run, of a model at `price`; caps and counts are shared."""
        part = copy(self)
        part._price = price
        part._own = _Own()
        return part

    def start_again(self) -> None:
        """Call before a collection that was broken off runs again in this process.

        What the journal replays to it was counted when it was paid for, and is then not counted twice.
        """
        with self._own.lock:
            self._own.heard = ZERO

    def worst_case(self, prompt_characters: int, max_tokens: int) -> Spend:
        """The most a request can cost.

        A character counts as a token until replies have told better (`learn_prompt`): tokenizers of today make about
        one token of four characters of English, and seldom more than one of one character in any language.

        Args:
            prompt_characters: of all messages and tool schemas sent.
            max_tokens: most tokens of the completion.
        """
        prompt_tokens = self._run.prompt_tokens(prompt_characters)
        usd = None if self._price is None else self._price.worst(prompt_tokens, max_tokens)
        return Spend(1, prompt_tokens + max_tokens, usd)

    def learn_prompt(self, prompt_characters: int, prompt_tokens: int) -> None:
        """Takes in how many tokens the endpoint made of a prompt, so that the next worst cases are closer."""
        self._run.learn_prompt(prompt_characters, prompt_tokens)

    async def reserve(self, worst: Spend) -> Reservation:
        """Leave to send one request that costs `worst` at most; waits while requests in flight may still free room.

        Raises:
            BudgetReached: nothing in flight can free the room.
        """
        if self._unlimited:
            return _FREE
        amounts = Amounts.of(worst)
        await self._run.book.reserve(amounts)
        return Reservation(worst, amounts)

    def settle(self, reservation: Reservation, spent: Spend | None) -> None:
        """Ends a reservation; see the module's table for what to pass.

        Args:
            reservation: of the request.
            spent: what it cost; None when nobody knows, and the worst case is then counted as possibly billed.
        """
        if reservation is _FREE or not reservation.is_open:
            return
        reservation.is_open = False
        worst = reservation.amounts
        if spent is None:
            if reservation.worst.usd is None:
                self._run.usd_known = False
            self._run.book.settle(worst, worst, worst)
            return
        counted, possible = Amounts.of(spent), ZERO
        if spent.usd is None and reservation.worst.usd is not None:
            possible = Amounts(spent.requests, 0, worst.picodollars)
            counted = counted.plus(Amounts(0, 0, worst.picodollars))
        elif spent.usd is None:
            self._run.usd_known = False
        if (excess := counted.above(worst)) != ZERO:
            self._run.note_excess(excess)
        if spent.tokens:
            # Only answers are ever replayed, and those without what was added for doubt.
            amounts = Amounts.of(spent)
            with self._own.lock:
                self._own.answered = self._own.answered.plus(amounts)
                self._own.heard = self._own.heard.plus(amounts)
        self._run.book.settle(worst, counted, possible)

    def count_replayed(self, spent: Spend) -> None:
        """Counts an answer of an earlier attempt, which was paid for then."""
        if self._unlimited:
            return
        amounts = Amounts.of(spent)
        with self._own.lock:
            self._own.heard = self._own.heard.plus(amounts)
            fresh = self._own.heard.above(self._own.answered)
            self._own.answered = self._own.answered.plus(fresh)
        if spent.usd is None:
            self._run.usd_known = False
        self._run.book.settle(ZERO, fresh, ZERO)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Wall time counts while at least one of these is open in the run."""
        self._run.start_clock()
        try:
            yield
        finally:
            self._run.stop_clock()

    def snapshot(self) -> BudgetSnapshot:
        """The state as a person wants to see it."""
        book, known = self._run.book, self._run.usd_known
        return BudgetSnapshot(
            counted=book.counted.spend(usd_known=known),
            possibly_billed=book.possible.spend(usd_known=known),
            reserved=book.reserved.spend(usd_known=known),
            waiting=book.waiting,
            wall_s=self._run.wall_s(),
        )


_shared: Final[dict[str, dict[str, Budget]]] = {}
_lock: Final = threading.Lock()


def shared_budget(run_id: str, part: str, config: BudgetConfig, price: Price | None) -> Budget:
    """The process's budget of a run, as one of its collections sees it.

    A part that is asked for again is one that was broken off and runs again: what the journal replays to it is not
    counted twice.

    Args:
        run_id: of the flow run.
        part: names the collection within the run; the same at each of its attempts.
        config: the caps; those of the run's first part hold.
        price: of the model this part asks; None when it is unknown.
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


def forget_budgets(run_id: str) -> None:
    """Lets go of a run's budget; call it when the flow run has ended."""
    with _lock:
        _shared.pop(run_id, None)
