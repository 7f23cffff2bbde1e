"""`Amounts`: spends as whole numbers, so that what is given back is exactly what was taken."""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from stillhouse.config import BudgetConfig
from stillhouse.inference.budget.spend import Spend

_PICO: Final = 10**12


class Amounts(NamedTuple):
    """Requests, tokens and picodollars; an unknown price counts no money."""

    requests: int
    tokens: int
    picodollars: int

    @classmethod
    def of(cls, spend: Spend) -> "Amounts":
        """A spend as whole numbers. Rounding is monotone: the larger spend has the larger amounts."""
        return cls(spend.requests, spend.tokens, 0 if spend.usd is None else round(spend.usd * _PICO))

    def spend(self, *, usd_known: bool = True) -> Spend:
        """The amounts as a spend."""
        return Spend(self.requests, self.tokens, self.picodollars / _PICO if usd_known else None)

    def plus(self, other: "Amounts") -> "Amounts":
        """The sum of both."""
        return Amounts(self[0] + other[0], self[1] + other[1], self[2] + other[2])

    def minus(self, other: "Amounts") -> "Amounts":
        """What is left of these after those."""
        return Amounts(self[0] - other[0], self[1] - other[1], self[2] - other[2])

    def above(self, other: "Amounts") -> "Amounts":
        """What these have more than those, each figure by itself."""
        return Amounts(max(0, self[0] - other[0]), max(0, self[1] - other[1]), max(0, self[2] - other[2]))


ZERO: Final = Amounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that may be counted; infinity where nothing is set."""

    requests: float
    tokens: float
    picodollars: float

    @classmethod
    def of(cls, config: BudgetConfig) -> "Caps":
        """The caps a config sets."""
        return cls(
            math.inf if config.max_requests is None else config.max_requests,
            math.inf if config.max_tokens is None else config.max_tokens,
            math.inf if config.max_usd is None else round(config.max_usd * _PICO),
        )

    def hold(self, amounts: Amounts) -> bool:
        """Whether no cap is passed."""
        return amounts[0] <= self.requests and amounts[1] <= self.tokens and amounts[2] <= self.picodollars
