"""`RunState`: what all collections of one run share of its budget."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached
from stillhouse.inference.budget.amounts import Amounts, Caps
from stillhouse.inference.budget.ledger import ReservationLedger
from stillhouse.inference.budget.prompt_tokens import PromptTokens
from stillhouse.inference.budget.reached import spent_error, time_error

_LOG = logging.getLogger(__name__)
_SECONDS_PER_HOUR: Final = 3600.0


class RunState:
    """The book of a run, its wall time, and what its requests have taught.

    Args:
        config: the caps.
        clock: seconds that never go back.
    """

    def __init__(self, config: BudgetConfig, clock: Callable[[], float]) -> None:
        self.book = ReservationLedger(Caps.of(config), self._refuse)
        self.usd_known = True
        """Whether the cost of everything counted is known, or bounded."""
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._num_running = 0
        self._started = 0.0
        self._ran_s = 0.0
        self._prompt_tokens = PromptTokens()
        self._told_excess = False

    def start_clock(self) -> None:
        """One more collection runs."""
        with self._lock:
            if self._num_running == 0:
                self._started = self._clock()
            self._num_running += 1

    def stop_clock(self) -> None:
        """A collection has ended."""
        with self._lock:
            self._num_running -= 1
            if self._num_running == 0:
                self._ran_s += self._clock() - self._started

    def wall_s(self) -> float:
        """Seconds in which at least one collection ran."""
        with self._lock:
            return self._ran_s + (self._clock() - self._started if self._num_running else 0.0)

    def prompt_tokens(self, characters: int) -> int:
        """The most tokens to expect of a prompt of so many characters."""
        return self._prompt_tokens.most(characters)

    def learn_prompt(self, characters: int, tokens: int) -> None:
        """Takes in what the endpoint made of a prompt."""
        with self._lock:
            self._prompt_tokens.learn(characters, tokens)

    def note_excess(self, excess: Amounts) -> None:
        """Tells, once in a run, of an answer that cost more than its request reserved."""
        with self._lock:
            told, self._told_excess = self._told_excess, True
        if not told:
            _LOG.warning(
                "an answer took %d tokens and %.4g USD more than its request had reserved; caps may be passed by as "
                "much for each request in flight",
                excess.tokens,
                excess.spend().usd,
            )

    def _refuse(self, worst: Amounts, fits: bool) -> BudgetReached | None:
        max_hours = self._config.max_hours
        if max_hours is not None and (wall_s := self.wall_s()) >= max_hours * _SECONDS_PER_HOUR:
            return time_error(wall_s / _SECONDS_PER_HOUR, max_hours)
        if fits:
            return None
        return spent_error(self._config, self.book.counted.spend(), self.book.possible.spend(), worst.spend())
