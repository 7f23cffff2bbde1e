"""The cost of requests (`Spend`), and the same in whole numbers (`Amounts`)."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from stillhouse.inference.price import PICO, Price
from stillhouse.types import Turn


@dataclass(frozen=True, slots=True)
class Spend:
    requests: int = 0
    tokens: int = 0
    usd: float | None = 0.0
    """None when the price is unknown; never 0 for unknown."""


NOTHING: Final = Spend()
"""Of a request that was never sent."""
REFUSED: Final = Spend(requests=1)
"""Of a request that was answered with an error."""


def spend_of(turn: Turn, price: Price | None) -> Spend | None:
    """Return the cost of one completion, by its own report or else by `price`; None if its tokens are unknown."""
    usage = turn.usage
    if "prompt_tokens" not in usage or "completion_tokens" not in usage:
        return None
    usd = price.of(usage, turn.service_tier) if turn.cost_usd is None and price is not None else turn.cost_usd
    return Spend(1, usage["prompt_tokens"] + usage["completion_tokens"], usd)


class Amounts(NamedTuple):
    """Requests, tokens and picodollars; an unknown price counts no money."""

    requests: int
    tokens: int
    picodollars: int

    @classmethod
    def of(cls, spend: Spend) -> "Amounts":
        """Return a spend as whole numbers. Rounding is monotone: the larger spend has the larger amounts."""
        return cls(spend.requests, spend.tokens, 0 if spend.usd is None else round(spend.usd * PICO))

    def spend(self, *, usd_known: bool = True) -> Spend:
        return Spend(self.requests, self.tokens, self.picodollars / PICO if usd_known else None)

    def plus(self, other: "Amounts") -> "Amounts":
        return Amounts(self[0] + other[0], self[1] + other[1], self[2] + other[2])

    def minus(self, other: "Amounts") -> "Amounts":
        return Amounts(self[0] - other[0], self[1] - other[1], self[2] - other[2])

    def above(self, other: "Amounts") -> "Amounts":
        """Return the excess over `other`, each figure by itself."""
        return Amounts(max(0, self[0] - other[0]), max(0, self[1] - other[1]), max(0, self[2] - other[2]))


ZERO: Final = Amounts(0, 0, 0)
