"""`RunState`: what all collections of one run share of its budget, and the errors when it is spent."""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached
from stillhouse.inference.budget.ledger import Amounts, BudgetCaps, ReservationLedger, Spend

_FIRST: Final = 1.0
"""Tokens a character before anything is known. English has about 0.25; few texts in any language have more than 1."""
_MIN_SEEN: Final = 20
_MIN_CHARACTERS: Final = 200
_MARGIN: Final = 1.25
"""Times the highest ratio seen: the next prompt may be worse than all before."""
_TEMPLATE: Final = 64
"""Tokens a chat template adds however short the prompt is."""
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
        """Learns from one prompt; a short one says more of the template than of the text."""
        if characters < _MIN_CHARACTERS:
            return
        with self._lock:
            self._num_seen += 1
            self._highest = max(self._highest, (tokens - _TEMPLATE) / characters)

    def most(self, characters: int) -> int:
        ratio = _FIRST if self._num_seen < _MIN_SEEN else self._highest * _MARGIN
        return math.ceil(characters * ratio) + _TEMPLATE


def spent_error(config: BudgetConfig, counted: Spend, possibly_billed: Spend, worst: Spend) -> BudgetReached:
    """The error if one more request could pass a cap.

    Args:
        config: the caps.
        counted: against them.
        possibly_billed: the part of it that is an upper bound.
        worst: what the request may cost.
    """
    passed = list(_passed(config, counted, worst))
    message = f"the budget is spent: {'; '.join(reason for _, reason in passed)}. "
    if possibly_billed.requests:
        money = f" and {possibly_billed.usd:.4g} USD" if possibly_billed.usd else ""
        message += (
            f"(Of that, {possibly_billed.tokens} tokens{money} are the worst case of {possibly_billed.requests} "
            "requests that did not say what they cost.) "
        )
    return BudgetReached(message + f"Raise {' and '.join(field for field, _ in passed)} {_AGAIN}")


def _passed(config: BudgetConfig, counted: Spend, worst: Spend) -> Iterator[tuple[str, str]]:
    """The field and the reason for each cap that the request could pass."""
    for name, unit in (("requests", "requests"), ("tokens", "tokens"), ("usd", "USD")):
        cap, spent, more = getattr(config, f"max_{name}"), getattr(counted, name) or 0, getattr(worst, name) or 0
        if cap is not None and spent + more > cap:
            over = f" ({spent - cap:.6g} over, by answers that cost more than foreseen)" if spent > cap else ""
            reason = f"{spent:.6g} of {cap:.6g} {unit} are spent{over}, and one more request may take {more:.6g}"
            yield f"budget.max_{name}", reason


class RunState:
    """The book of a run, its wall time, and what its requests have taught.

    Args:
        config: the caps.
    """

    def __init__(self, config: BudgetConfig, clock: Callable[[], float]) -> None:
        self.book = ReservationLedger(BudgetCaps.of(config), self._refuse)
        self.usd_known = True
        """Whether the cost of everything counted is known, or bounded."""
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._num_running = 0
        self._started = 0.0
        self._ran_s = 0.0
        self.prompt_tokens = PromptTokens()
        self._has_logged_excess = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Wall time counts while at least one of these is open."""
        with self._lock:
            if self._num_running == 0:
                self._started = self._clock()
            self._num_running += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_running -= 1
                if self._num_running == 0:
                    self._ran_s += self._clock() - self._started

    def wall_s(self) -> float:
        """Seconds in which at least one collection ran."""
        with self._lock:
            return self._ran_s + (self._clock() - self._started if self._num_running else 0.0)

    def note_excess(self, excess: Amounts) -> None:
        """Logs, once in a run, an answer that cost more than its request reserved."""
        with self._lock:
            was_logged, self._has_logged_excess = self._has_logged_excess, True
        if not was_logged:
            _LOG.warning(
                "an answer took %d tokens and %.4g USD more than its request had reserved; caps may be passed by as "
                "much for each request in flight",
                excess.tokens,
                excess.spend().usd,
            )

    def _refuse(self, worst: Amounts, fits: bool) -> BudgetReached | None:
        max_hours = self._config.max_hours
        if max_hours is not None and (wall_s := self.wall_s()) >= max_hours * _SECONDS_PER_HOUR:
            return BudgetReached(
                f"the budget is spent: rollouts have taken {wall_s / _SECONDS_PER_HOUR:.3g} of {max_hours:g} hours. "
                f"Raise budget.max_hours {_AGAIN}"
            )
        if fits:
            return None
        return spent_error(self._config, self.book.counted.spend(), self.book.possible.spend(), worst.spend())
