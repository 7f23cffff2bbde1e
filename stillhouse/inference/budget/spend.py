"""`Spend`: what a request, a rollout or a whole run costs."""

from dataclasses import dataclass
from typing import Final

from stillhouse.inference.endpoint import Price
from stillhouse.types import Turn


@dataclass(frozen=True, slots=True)
class Spend:
    """What something cost, or may cost."""

    requests: int = 0
    tokens: int = 0
    """Prompts and completions together."""
    usd: float | None = 0.0
    """None when the price is unknown; never 0 for unknown."""

    def __add__(self, other: "Spend") -> "Spend":
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Spend(self.requests + other.requests, self.tokens + other.tokens, usd)


NOTHING: Final = Spend()
"""What a request cost that was never sent."""
REFUSED: Final = Spend(requests=1)
"""What a request cost that was answered with an error."""


def spend_of(turn: Turn, price: Price | None) -> Spend | None:
    """What one completion cost; None when its endpoint did not say how many tokens it took.

    Args:
        turn: the completion's facts; its own cost goes before any price.
        price: for where the turn has no cost.
    """
    usage = turn.usage
    if "prompt_tokens" not in usage or "completion_tokens" not in usage:
        return None
    usd = turn.cost_usd
    if usd is None and price is not None:
        usd = price.of(usage)
    return Spend(1, usage["prompt_tokens"] + usage["completion_tokens"], usd)
