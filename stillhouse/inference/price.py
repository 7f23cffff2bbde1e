"""`Price`: what a model charges, and from it the exact cost of a completion and the most that one can cost.

Amounts are summed as decimals and rounded once, to the picodollar: a price of 0.1 is a tenth, not the nearest float.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from functools import lru_cache
from typing import Any, Final

from stillhouse.inference.usage import Parts, parts_of
from stillhouse.types import TokenUsage

PICO: Final = 10**12
DEFAULT_TIER: Final = "default"
_ANSWERING: Final = {DEFAULT_TIER: (DEFAULT_TIER,), "flex": ("flex", DEFAULT_TIER)}
"""Tiers that may answer a request for one; of others, and of requests for none, `default` and `priority`: what an
account is set to is not known here."""
_AMOUNTS: Final = ("prompt", "completion", "cached_prompt", "cache_write", "cache_write_long", "reasoning")


@dataclass(frozen=True, slots=True)
class Price:
    """The prices of a model, in USD per million tokens."""

    prompt: float
    completion: float
    """For reasoning tokens as well, unless `reasoning` names another price."""
    cached_prompt: float | None = None
    """For prompt tokens that the endpoint had cached; None charges them as the others."""
    reasoning: float | None = None
    """For reasoning tokens; None charges them as the completion they are part of."""
    request: float = 0.0
    """USD for each completion on top of its tokens; not per million."""
    cache_write: float | None = None
    """For prompt tokens that the endpoint puts into its cache; None charges them as the others."""
    cache_write_long: float | None = None
    """For those that it keeps for an hour or longer; unknown if None, unless writes have no price of their own."""
    above: Mapping[int, "Price"] = field(default_factory=dict, hash=False)
    """Prices of the whole request where its prompt has more tokens than the key, cached ones included."""
    tiers: Mapping[str, "Price"] | None = field(default=None, hash=False)
    """Prices of the service tiers besides `default`; None where one price holds for all."""
    gaps: tuple[str, ...] = ()
    """Charges that the source names and nothing here counts, or that it leaves out: a cap cannot be held with them."""
    asked: str | None = None
    """Service tier that requests ask for."""
    source: str = field(default="", compare=False)
    """Where the price is from, and of when it is."""

    def of(self, usage: TokenUsage, tier: str | None = None) -> float | None:
        """Return USD for one completion; None if its tokens or their prices are unknown.

        `tier` is the service tier of the answer; None if it names none.
        """
        parts, price = parts_of(usage), self._in(tier)
        if parts is None or price is None:
            return None
        row = max(((above, row) for above, row in price.above.items() if above < parts.prompt), default=(0, price))[1]
        if parts.written_long and row.cache_write_long is None and row.cache_write is not None:
            return None
        return int(row._exact(parts).to_integral_value(ROUND_HALF_EVEN)) / PICO

    def worst(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return USD for one completion if each token is charged at the highest price that can apply to it."""
        return max(row._most(prompt_tokens, completion_tokens) for row in self._rows(prompt_tokens))

    def batch(self) -> "Price | None":
        """Return the price through a batch endpoint; None if unknown.

        Where one price stands for all tiers it is half of it: https://platform.openai.com/docs/guides/batch.
        """
        if self.tiers is None:
            return self.half()
        price = self.tiers.get("batch")
        return None if price is None else replace(price, gaps=self.gaps + price.gaps, source=self.source)

    def half(self) -> "Price":
        amounts = {name: getattr(self, name) for name in (*_AMOUNTS, "request")}
        halved: dict[str, Any] = {name: None if usd is None else usd / 2 for name, usd in amounts.items()}
        return replace(self, **halved)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the charges that requests can meet and that cannot be counted."""
        tiers = [price for name in self._answering if (price := self._in(name)) not in (None, self)]
        is_missing = self.asked not in (None, "auto") and self._in(self.asked) is None
        missing = (f"the service tier {self.asked}",) if is_missing else ()
        return (*missing, *self.gaps, *(gap for price in tiers if price is not None for gap in price.gaps))

    def __str__(self) -> str:
        """Return the prices of short prompts in the default tier, as text."""
        amounts = [(getattr(self, name), name.replace("_", " ")) for name in _AMOUNTS]
        prices = ", ".join(f"${usd:g} {name}" for usd, name in amounts if usd is not None) + " per million tokens"
        return f"{prices}, ${self.request:g} a request" if self.request else prices

    @property
    def _answering(self) -> tuple[str, ...]:
        return _ANSWERING.get(self.asked or "auto", (DEFAULT_TIER, "priority"))

    def _in(self, tier: str | None) -> "Price | None":
        name = tier or (DEFAULT_TIER if self.asked in (None, "auto") else self.asked)
        return self if self.tiers is None or name == DEFAULT_TIER else self.tiers.get(str(name))

    def _rows(self, prompt_tokens: int) -> Iterator["Price"]:
        """Yield the rows that a request of at most so many prompt tokens can be charged by."""
        for price in (self._in(name) for name in self._answering):
            if price is not None:
                yield price
                # Some sellers count the bound itself among the longer prompts.
                yield from (row for above, row in price.above.items() if above <= prompt_tokens)

    def _exact(self, parts: Parts) -> Decimal:
        """Return picodollars."""
        write = _or(self.cache_write, self.prompt)
        cache = (_or(self.cached_prompt, self.prompt), write, _or(self.cache_write_long, write))
        prices = (self.prompt, *cache, self.completion, _or(self.reasoning, self.completion))
        tokens = sum((count * _decimal(usd) for count, usd in zip(parts, prices, strict=True) if count), Decimal(0))
        return tokens * 10**6 + _decimal(self.request) * PICO

    def _most(self, prompt_tokens: int, completion_tokens: int) -> float:
        prompt = max(self.prompt, self.cached_prompt or 0.0, self.cache_write or 0.0, self.cache_write_long or 0.0)
        completion = max(self.completion, self.reasoning or 0.0)
        tokens = prompt_tokens * _decimal(prompt) + completion_tokens * _decimal(completion)
        most = tokens * 10**6 + _decimal(self.request) * PICO
        return int(most.to_integral_value(ROUND_CEILING)) / PICO


def _or(usd: float | None, otherwise: float) -> float:
    return otherwise if usd is None else usd


@lru_cache(maxsize=1024)
def _decimal(usd: float) -> Decimal:
    return Decimal(repr(usd))
